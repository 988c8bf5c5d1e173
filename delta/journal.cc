#include "delta/journal.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <optional>
#include <set>

#include <fcntl.h>
#include <fmt/format.h>
#include <zstd.h>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/records/manifest.h"

namespace ingot::delta {

namespace fs = std::filesystem;
using formats::Json;
using formats::JsonFields;

namespace {

constexpr std::uint64_t kJournalSchema = 1, kMaxJournalBytes = std::uint64_t{256} << 20;
constexpr int kRunsLevel = 1;
// Two changes with fewer equal bytes between them are one run.
constexpr std::size_t kRunGap = 16;
constexpr std::uint64_t kWindow = std::uint64_t{1} << 20;

/// The place of a run, before its bytes.
struct RunHead {
  std::uint64_t file = 0, tensor_begin = 0, tensor_bytes = 0;
  std::uint64_t offset = 0, n_bytes = 0;  // within the tensor
};

void require_zstd(std::size_t result, const std::string& path) {
  if (!ZSTD_isError(result)) return;
  throw Error(ErrorCode::kCorrupt, "is not the journal that was written ({})",
              ZSTD_getErrorName(result))
      .in_file(path);
}

class RunReader {
 public:
  explicit RunReader(const fs::path& path)
      : file_(Fd::open_for_reading(path)),
        n_left_(file_.size()),
        context_(ZSTD_createDCtx()),
        input_(ZSTD_DStreamInSize()) {
    if (context_ == nullptr) throw std::bad_alloc();
  }
  // False at the end, which is between two runs.
  bool next(RunHead& head, std::vector<std::byte>& bytes) {
    if (!read(std::as_writable_bytes(std::span(&head, 1)), /*may_end=*/true)) return false;
    if (head.n_bytes > kWindow || head.tensor_bytes < head.n_bytes ||
        head.offset > head.tensor_bytes - head.n_bytes)
      fail("has a run of a wrong length");
    bytes.resize(static_cast<std::size_t>(head.n_bytes));
    read(bytes, /*may_end=*/false);
    return true;
  }
  [[noreturn]] void fail(std::string_view fact) const {
    throw Error(ErrorCode::kCorrupt, std::string(fact)).in_file(file_.path());
  }

 private:
  struct Free {
    void operator()(ZSTD_DCtx_s* context) const { ZSTD_freeDCtx(context); }
  };

  bool read(std::span<std::byte> out, bool may_end) {
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos < to.size) {
      if (in_.pos == in_.size && n_left_ > 0) {
        const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(input_.size(), n_left_));
        file_.read_exact(std::span(input_).first(n), offset_);
        offset_ += n;
        n_left_ -= n;
        in_ = {input_.data(), n, 0};
      }
      const bool is_last = in_.pos == in_.size;
      if (is_last && !is_inside_) {
        if (may_end && to.pos == 0) return false;
        fail("ends within a run");
      }
      const std::size_t before = to.pos;
      const std::size_t left = ZSTD_decompressStream(context_.get(), &to, &in_);
      require_zstd(left, file_.path());
      is_inside_ = left != 0;
      if (is_last && is_inside_ && to.pos == before) fail("is cut");
    }
    return true;
  }

  Fd file_;
  std::uint64_t offset_ = 0, n_left_ = 0;
  std::unique_ptr<ZSTD_DCtx_s, Free> context_;
  std::vector<std::byte> input_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool is_inside_ = true;
};

// Writes runs through a window of the tensor that they are in: no byte of another tensor is
// written, which another thread may do at the same time.
class WindowedPatch {
 public:
  WindowedPatch(const Folder& folder, const std::map<std::uint64_t, std::string>& names,
                const RunReader& reader)
      : folder_(folder), names_(names), reader_(reader) {}

  void put(const RunHead& head, std::span<const std::byte> bytes) {
    const std::uint64_t at = head.tensor_begin + head.offset;
    if (head.file != number_ || at < begin_ || at + bytes.size() > begin_ + window_.size()) {
      flush();
      open(head.file);
      const std::uint64_t end = head.tensor_begin + head.tensor_bytes;
      if (end < head.tensor_begin || end > file_.size())
        reader_.fail("has a run behind the end of its file");
      begin_ = at;
      window_.resize(static_cast<std::size_t>(std::min(kWindow, end - at)));
      file_.read_exact(window_, begin_);
    }
    std::ranges::copy(bytes, window_.begin() + static_cast<std::ptrdiff_t>(at - begin_));
    is_dirty_ = true;
  }
  void flush() {
    if (is_dirty_) file_.write_exact(window_, begin_);
    is_dirty_ = false;
  }

 private:
  void open(std::uint64_t number) {
    if (number == number_) return;
    const auto name = names_.find(number);
    if (name == names_.end()) reader_.fail("names a file that is not in the journal");
    file_ = folder_.open(name->second, O_RDWR);
    number_ = number;
  }

  const Folder& folder_;
  const std::map<std::uint64_t, std::string>& names_;
  const RunReader& reader_;
  std::vector<std::byte> window_;
  Fd file_;
  std::optional<std::uint64_t> number_;
  std::uint64_t begin_ = 0;
  bool is_dirty_ = false;
};

// Removes a file that goes; a folder of its name has come since.
void remove_file(const Folder& folder, const std::string& name) {
  const fs::path path = fs::path(folder.path()) / name;
  if (!fs::is_directory(path) || fs::is_symlink(path)) folder.remove(name);
}

// Removes empty folders in whose place a file comes.
void remove_empty(const Folder& folder, const std::string& name) {
  const fs::path path = fs::path(folder.path()) / name;
  if (!fs::is_directory(path) || fs::is_symlink(path)) return;
  const std::vector<fs::directory_entry> entries = entries_below(path);
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry)
    if (entry->is_directory()) folder.remove(entry->path().lexically_relative(folder.path()));
  folder.remove(name);
}

void sync_folders(const Folder& folder, const std::set<fs::path>& names) {
  for (const fs::path& name : names) sync_directory(fs::path(folder.path()) / name);
  sync_directory(folder.path());
}

JournalFacts read_journal(const fs::path& path) {
  const std::string where = path.string();
  const Json json = formats::parse_json(read_text_file(path, kMaxJournalBytes), where);
  const JsonFields fields(json, where);
  if (fields.number("schema") != kJournalSchema)
    fields.unsupported("is of another schema (finish it with the version of ingot that began)");
  JournalFacts facts{.version = fields.number("version"),
                     .n_runs = static_cast<std::size_t>(fields.number("runs", 4096))};
  const auto names = [&](const char* key, std::vector<std::string>& list) {
    for (const Json& entry : fields.array(key)) {
      const Json wrapped = {{"name", entry}};
      list.push_back(JsonFields(wrapped, where, key).inner_path("name"));
    }
  };
  for (const Json& entry : fields.array("files")) {
    const JsonFields file(entry, where, "files");
    facts.files.emplace(file.number("number"), file.inner_path("name"));
  }
  names("staged", facts.staged);
  names("removed", facts.removed);
  if (fields.find("folders") != nullptr) names("folders", facts.folders);
  return facts;
}

}  // namespace

struct RunWriter::State {
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }
  };
  Fd file;
  std::unique_ptr<ZSTD_CCtx_s, Free> context{ZSTD_createCCtx()};
  std::vector<std::byte> out = std::vector<std::byte>(ZSTD_CStreamOutSize());
  std::uint64_t offset = 0;

  void feed(std::span<const std::byte> bytes, ZSTD_EndDirective directive) {
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    while (true) {
      ZSTD_outBuffer to{out.data(), out.size(), 0};
      const std::size_t left = ZSTD_compressStream2(context.get(), &to, &in, directive);
      require_zstd(left, file.path());
      file.write_exact(std::span(out).first(to.pos), offset);
      offset += to.pos;
      if (directive == ZSTD_e_end ? left == 0 : in.pos == in.size) return;
    }
  }
};

RunWriter::RunWriter(Fd file) : state_(std::make_unique<State>(State{.file = std::move(file)})) {
  ZSTD_CCtx* context = state_->context.get();
  if (context == nullptr) throw std::bad_alloc();
  INGOT_CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, kRunsLevel)));
  INGOT_CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1)));
}
RunWriter::~RunWriter() = default;
RunWriter::RunWriter(RunWriter&&) noexcept = default;
RunWriter& RunWriter::operator=(RunWriter&&) noexcept = default;

void RunWriter::add(const TensorPiece& piece) {
  const std::size_t n = piece.before.size();
  const auto differs = [&](std::size_t i) { return piece.before[i] != piece.after[i]; };
  for (std::size_t i = 0; i < n;) {
    if (!differs(i)) {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    for (std::size_t j = end; j < n && j - end < kRunGap; ++j) {
      if (differs(j)) end = j + 1;
    }
    const RunHead head{.file = piece.tensor->file,
                       .tensor_begin = piece.tensor->offset,
                       .tensor_bytes = piece.tensor->n_bytes,
                       .offset = piece.offset + i,
                       .n_bytes = end - i};
    state_->feed(std::as_bytes(std::span(&head, 1)), ZSTD_e_continue);
    state_->feed(piece.after.subspan(i, end - i), ZSTD_e_continue);
    i = end;
  }
}

void RunWriter::finish() {
  state_->feed({}, ZSTD_e_end);
  state_->file.sync();
  state_->file.close();
}

std::string runs_name(std::size_t worker) {
  return fmt::format("runs-{}", worker);
}

void commit_journal(const Folder& folder, const JournalFacts& facts) {
  const auto file_json = [](const auto& file) {
    return Json{{"number", file.first}, {"name", file.second}};
  };
  const Json json = {{"schema", kJournalSchema},
                     {"tool", "ingot"},
                     {"version", facts.version},
                     {"runs", facts.n_runs},
                     {"files", formats::json_list(facts.files, file_json)},
                     {"staged", facts.staged},
                     {"removed", facts.removed},
                     {"folders", facts.folders}};
  const fs::path staging = kStagingName;
  const std::string text = formats::json_text(json);
  Fd file = folder.replace(staging / formats::kDeltaJournalName, O_WRONLY);
  file.write_exact(std::as_bytes(std::span(text)), 0);
  file.sync();
  file.close();
  std::set<fs::path> folders = {staging};
  for (const std::string& name : facts.staged)
    folders.insert((staging / kStagedFiles / name).parent_path());
  sync_folders(folder, folders);
  folder.rename(staging, folder, formats::kPartialName);
  sync_directory(folder.path());
}

bool has_journal(const fs::path& directory) {
  return stamp_of(directory / formats::kPartialName / formats::kDeltaJournalName).has_value();
}

std::uint64_t finish_journal(const Folder& folder, std::size_t threads) {
  const fs::path partial = formats::kPartialName;
  const fs::path journal = fs::path(folder.path()) / partial;
  const JournalFacts facts = read_journal(journal / formats::kDeltaJournalName);
  // Engines that read the state meanwhile take the directory for one without any version.
  folder.remove(state_name({}));
  for (const std::string& rank : facts.folders) folder.remove(state_name(rank));
  std::atomic<std::size_t> next = 0;
  if (facts.n_runs > 0) {
    run_workers(std::max<std::size_t>(std::min(threads, facts.n_runs), 1), [&](std::size_t) {
      for (std::size_t i = next++; i < facts.n_runs; i = next++) {
        RunReader reader(journal / runs_name(i));
        WindowedPatch patch(folder, facts.files, reader);
        RunHead head;
        std::vector<std::byte> bytes;
        while (reader.next(head, bytes)) patch.put(head, bytes);
        patch.flush();
      }
    });
  }
  for (const auto& [number, name] : facts.files) folder.open(name, O_RDWR).sync();
  for (const std::string& name : facts.removed) remove_file(folder, name);
  std::set<fs::path> folders;
  const fs::path staged = partial / kStagedFiles;
  for (const std::string& name : facts.staged) {
    const fs::path parent = fs::path(name).parent_path();
    if (folder.stamp(staged / name)) {
      (void)folder.make(parent);
      remove_empty(folder, name);
      folder.rename(staged / name, folder, name);
    } else if (!folder.stamp(name)) {
      throw Error(ErrorCode::kMismatch, "is neither in the journal nor in its place")
          .in_file((fs::path(folder.path()) / name).string());
    }
    if (!parent.empty()) folders.insert(parent);
  }
  sync_folders(folder, folders);
  for (const std::string& rank : facts.folders) write_state(folder, rank, facts.version);
  write_state(folder, {}, facts.version);
  folder.remove_all(kSweptName);
  folder.rename(partial, folder, kSweptName);
  sync_directory(folder.path());
  folder.remove_all(kSweptName);
  return facts.version;
}

void write_state(const Folder& folder, const fs::path& inside, std::uint64_t version) {
  const fs::path sync = inside / kSyncFolder;
  (void)folder.make(sync);
  const fs::path made = sync / "state.json.ingot";
  Fd file = folder.replace(made, O_WRONLY);
  const std::string text = state_text(version);
  file.write_exact(std::as_bytes(std::span(text)), 0);
  file.sync();
  file.close();
  folder.rename(made, folder, sync / kStateName);
  sync_directory(fs::path(folder.path()) / sync);
}

}  // namespace ingot::delta
