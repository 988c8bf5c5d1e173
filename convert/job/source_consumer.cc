#include "convert/job/source_consumer.h"

#include <algorithm>

#include "convert/job/resume.h"
#include "formats/base/fd.h"
#include "formats/files/folder.h"
#include "formats/records/manifest.h"
#include "shard/join/source.h"

namespace ingot::convert {

void require_consumable(const Plan& plan) {
  const formats::Checkpoint& source = plan.source;
  if (plan.recipe.choices.repair != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "--consume-source deletes files that a continued repair has to read again (leave "
                "it out: unchanged files are links, which take no space)")
        .in_file(source.directory().string());
  }
  if (plan.recipe.choices.composed != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "--consume-source deletes the files of one checkpoint, and several are read here "
                "(leave it out)")
        .in_file(source.directory().string());
  }
  // A plan reads this of the source in addition to headers; a run that resumes could not see it any
  // more.
  if (plan.source_facts.has_head_apart) {
    throw Error(ErrorCode::kUnsupported,
                "says tie_word_embeddings, and the head that is stored is not the embedding "
                "(--consume-source needs a config that says so: put tie_word_embeddings false "
                "there, as the output has it; or convert without it)")
        .in_file((source.directory() / "config.json").string());
  }
  // Slices that are joined have the directory of the first rank.
  const auto manifest = formats::read_manifest(source.directory());
  const bool is_sliced =
      shard::is_sliced(source.directory()) || (manifest && manifest->slicing.has_value());
  // Experts that are seen in another form lie in several files each.
  if (!source.is_whole() && !is_sliced) {
    throw Error(ErrorCode::kUnsupported,
                "--consume-source deletes a file when its tensors are done, and the experts of a "
                "layer are put together from several files for this output (convert without it; or "
                "with --experts keep, where the loader takes that form)")
        .in_file(source.directory().string());
  }
  if (!source.is_whole()) {
    throw Error(ErrorCode::kUnsupported,
                "--consume-source deletes the files of one checkpoint, and the source is slices of "
                "several ranks (convert without it)")
        .in_file(source.directory().string());
  }
  if (source.dialect().is_read_only) {
    throw Error(ErrorCode::kUnsupported,
                "--consume-source deletes files while others are still read, and a weight of {} is "
                "proved by tensors of several (convert without it)",
                source.dialect().name)
        .in_file(source.directory().string());
  }
  for (const formats::SourceFile& file : source.files()) {
    const std::filesystem::path path = source.directory() / file.name;
    if (!std::filesystem::is_symlink(path)) continue;
    throw Error(ErrorCode::kUnsupported,
                "is a symbolic link, of which --consume-source would delete the link and not the "
                "data (put the files themselves into the source folder)")
        .in_file(path.string());
  }
}

SourceConsumer::SourceConsumer(const Plan& plan, const OutputPaths& paths, SourceStamps& stamps,
                               Consume when)
    : plan_(plan),
      paths_(paths),
      stamps_(stamps),
      when_(when),
      readers_(plan.source.files().size()),
      waiting_(plan.source.files().size(), 0),
      consumed_(plan.source.files().size(), 0),
      verified_(plan.tensors.size(), 0) {
  for (std::uint32_t index = 0; index < plan.tensors.size(); ++index) {
    for (const std::uint32_t file : plan.source_files_of(plan.tensors[index])) {
      readers_[file].push_back(index);
      ++waiting_[file];
    }
  }
  for (std::uint32_t file = 0; file < consumed_.size(); ++file)
    consumed_[file] = plan.source.has_data(file) ? 0 : 1;
}

void SourceConsumer::save_headers() const {
  const Folder consumed =
      Folder::open(paths_.output).make(paths_.consumed.lexically_relative(paths_.output));
  for (std::uint32_t file = 0; file < plan_.source.files().size(); ++file) {
    if (!plan_.source.has_data(file)) continue;
    const std::vector<std::byte> header = plan_.source.header_bytes(file);
    const formats::SourceFile& facts = plan_.source.files()[file];
    const std::string name = facts.name + ".header";
    consumed.remove(name);
    write_text_file(paths_.consumed / name,
                    std::string_view(reinterpret_cast<const char*>(header.data()), header.size()));
  }
  sync_directory(paths_.consumed);
}

void SourceConsumer::tensors_done(const std::vector<std::uint32_t>& items,
                                  const std::vector<TensorResult>& hashes, Journal& journal) {
  if (when_ == Consume::kAtTheEnd) return;
  std::set<std::uint32_t> free;
  for (const std::uint32_t index : items) {
    for (const std::uint32_t file : plan_.source_files_of(plan_.tensors[index])) {
      if (--waiting_[file] == 0) free.insert(file);
    }
  }
  for (const std::uint32_t file : free) {
    if (consumed_[file] != 0) continue;
    for (const std::uint32_t index : readers_[file]) {
      if (verified_[index] != 0) continue;
      if (!verify_tensor(plan_.tensors[index], plan_, paths_, hashes[index].output)) {
        throw Error(ErrorCode::kMismatch,
                    "is read back with other bytes than were written; its source is kept "
                    "(check the disk of the output)")
            .in_tensor(plan_.tensor_of(plan_.tensors[index]).name);
      }
      verified_[index] = 1;
    }
    consume(file, journal);
  }
}

void SourceConsumer::finish(Journal& journal) {
  for (std::uint32_t file = 0; file < consumed_.size(); ++file) {
    if (consumed_[file] != 0) continue;
    if (when_ == Consume::kAtTheEnd || readers_[file].empty()) consume(file, journal);
  }
}

void SourceConsumer::consume(std::uint32_t file, Journal& journal) {
  const std::filesystem::path path = plan_.source.directory() / plan_.source.files()[file].name;
  stamps_.require_unchanged(path);
  journal.add_consumed(plan_.source.files()[file].name);
  plan_.source.close_file(file);
  std::error_code failure;
  stamps_.forget(path);
  std::filesystem::remove(path, failure);
  if (failure) {
    throw system_error(failure.value(), "delete the consumed source file",
                       plan_.source.files()[file].name);
  }
  consumed_[file] = 1;
}

}  // namespace ingot::convert
