#include "convert/joined_reader.h"

#include <algorithm>
#include <map>
#include <utility>

#include "convert/run/actions.h"
#include "convert/run/moments_factors.h"
#include "convert/run/window_writer.h"
#include "formats/base/error.h"
#include "formats/base/stop_scope.h"

namespace ingot::convert {

// Gives ranges of files on, as pieces of the stored tensors that they are in.
class JoinedReader::Sink final : public ByteSink {
 public:
  Sink(const JoinedReader& reader, const std::function<void(const JoinedPiece&)>& receive)
      : reader_(reader), receive_(receive) {}

  Lease acquire(std::uint32_t file, std::uint64_t offset, std::uint64_t n_bytes) override {
    buffer_.resize(n_bytes);
    return {.bytes = buffer_, .file = file, .offset = offset};
  }
  void commit(const Lease& lease, std::uint32_t /*item*/) override {
    const std::uint32_t file = reader_.file_of_.at(lease.file);
    auto at = reader_.begins_.upper_bound({file, lease.offset});
    INGOT_CHECK(at != reader_.begins_.begin());
    --at;
    INGOT_CHECK(at->first.first == file);
    // Receivers compute digests, which depend on the order.
    std::uint64_t& next = next_[{file, at->second}];
    INGOT_CHECK(lease.offset == at->first.second + next);
    next += lease.bytes.size();
    receive_({.file = file, .joined = at->second, .bytes = lease.bytes});
  }

 private:
  const JoinedReader& reader_;
  const std::function<void(const JoinedPiece&)>& receive_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> next_;
  std::vector<std::byte> buffer_;  // one lease at a time
};

std::vector<JoinedGroup> joined_groups(const Plan& plan) {
  // The weight of a tensor decides: its other parts follow in the same order. Experts that are
  // dealt out are in some files only; each file has its own in the order of all.
  std::map<std::string, std::vector<std::uint32_t>> by_name;
  std::vector<char> is_placed(plan.tensors.size(), 0);
  for (const PlannedFile& file : plan.files) {
    std::size_t part = 0;
    for (const PlannedFile::Joined& joined : file.joined) {
      for (std::uint32_t i = 0; i < joined.n_parts; ++i, ++part) {
        const PartRef& at = file.parts[part];
        if (at.part != 0 || is_placed[at.tensor] != 0) continue;
        is_placed[at.tensor] = 1;
        by_name[joined.spec.name].push_back(at.tensor);
      }
    }
  }
  std::vector<JoinedGroup> groups;
  for (auto& [name, tensors] : by_name) {
    JoinedGroup& group =
        groups.emplace_back(JoinedGroup{.name = name, .tensors = std::move(tensors)});
    for (const std::uint32_t t : group.tensors) {
      for (std::size_t p = 0; p < plan.tensors[t].n_parts; ++p)
        group.n_bytes += plan.tensors[t].parts[p].n_bytes;
    }
  }
  return groups;
}

JoinedReader::JoinedReader(const Plan& plan)
    : plan_(plan),
      file_of_(plan.n_members),
      done_(plan.tensors.size(), 0),
      results_(plan.tensors.size()) {
  for (std::uint32_t f = 0; f < plan.files.size(); ++f) {
    const PlannedFile& file = plan.files[f];
    for (std::uint32_t m = 0; m < file.members.size(); ++m) file_of_[file.first_member + m] = f;
    for (std::uint32_t j = 0; j < file.joined.size(); ++j) begins_[{f, file.joined[j].offset}] = j;
  }
}

void JoinedReader::read(const JoinedGroup& group,
                        const std::function<void(const JoinedPiece&)>& receive) {
  Sink sink(*this, receive);
  MomentsFactors factors(plan_, 0, 1, done_);
  RunContext context{.plan = plan_, .writer = sink, .progress = [] {}, .factors = &factors};
  SetConverter converter(context, 0, {.done = done_, .of = results_});
  for (const std::uint32_t t : group.tensors) {
    StopScope::check();
    converter(std::span(&t, 1));
    results_[t] = {};
  }
}

}  // namespace ingot::convert
