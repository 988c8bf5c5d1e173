#include "convert/job/journal.h"

#include <algorithm>
#include <bit>
#include <limits>

#include <fcntl.h>

#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/files/folder.h"
#include "formats/json/members.h"

namespace ingot::convert {

using formats::Json;

namespace {

constexpr std::uint64_t kMaxJournalBytes = std::uint64_t{1} << 30;
constexpr std::size_t kHashDigits = 32;
constexpr std::string_view kRemedy =
    "the journal was changed, or is another version's: start again with --force";

// `<hash of the text> <text>\n`: a line that was cut or garbled by a crash does not match its hash.
std::string line_of(const Json& fact) {
  // Words for people may hold any bytes; facts that are read again are escaped.
  const std::string text = fact.dump(-1, ' ', false, Json::error_handler_t::replace);
  return hash_bytes(std::as_bytes(std::span(text))).hex() + " " + text + "\n";
}

std::optional<Json> parse_line(std::string_view line) {
  if (line.size() < kHashDigits + 2 || line[kHashDigits] != ' ') return std::nullopt;
  const std::string_view text = line.substr(kHashDigits + 1);
  if (hash_bytes(std::as_bytes(std::span(text))).hex() != line.substr(0, kHashDigits))
    return std::nullopt;
  return formats::parse_json(text, "journal");
}

// JSON numbers come back as the doubles that they were.
Json json_of(const quantize::QualitySums& sums) {
  return std::apply(
      [&](const auto&... sum) {
        return Json{sum..., sums.max_error};
      },
      quantize::QualitySums::fields(sums));
}

Json json_of(const quantize::ChangeSums& sums) {
  return std::apply([](const auto&... sum) { return Json{sum...}; },
                    quantize::ChangeSums::fields(sums));
}

quantize::ChangeSums change_of(const Json& list) {
  quantize::ChangeSums sums;
  std::size_t at = 0;
  std::apply([&](auto&... sum) { (list.at(at++).get_to(sum), ...); },
             quantize::ChangeSums::fields(sums));
  return sums;
}

quantize::QualitySums quality_of(const Json& list) {
  quantize::QualitySums sums;
  std::size_t at = 0;
  std::apply([&](auto&... sum) { (list.at(at++).get_to(sum), ...); },
             quantize::QualitySums::fields(sums));
  list.at(at).get_to(sums.max_error);
  return sums;
}

// Infinity is null.
Json json_of(const formats::RecordedError& error) {
  return {error.relative_error, error.sqnr_db, error.cosine, error.max_error,   error.elements,
          error.saturated,      error.zeroed,  error.blocks, error.exact_blocks};
}

formats::RecordedError error_of(const Json& list) {
  const Json& sqnr = list.at(1);
  return {.relative_error = list.at(0).get<double>(),
          .sqnr_db = sqnr.is_null() ? std::numeric_limits<double>::infinity() : sqnr.get<double>(),
          .cosine = list.at(2).get<double>(),
          .max_error = list.at(3).get<double>(),
          .elements = list.at(4).get<std::uint64_t>(),
          .saturated = list.at(5).get<std::uint64_t>(),
          .zeroed = list.at(6).get<std::uint64_t>(),
          .blocks = list.at(7).get<std::uint64_t>(),
          .exact_blocks = list.at(8).get<std::uint64_t>()};
}

Hash128 hash_of(const std::string& digits) {
  try {
    return Hash128::from_hex(digits);
  } catch (Error& error) {
    throw error.in_file("journal");
  }
}

std::vector<Hash128> hashes_of(const Json& list) {
  std::vector<Hash128> hashes;
  for (const Json& text : list) hashes.push_back(hash_of(text.get_ref<const std::string&>()));
  return hashes;
}

Json texts_of(const std::vector<Hash128>& hashes) {
  Json list = Json::array();
  for (const Hash128& hash : hashes) list.push_back(hash.hex());
  return list;
}

// The slices of a part in one string, 32 digits each.
Json joined_texts(const std::vector<std::vector<Hash128>>& parts) {
  Json list = Json::array();
  for (const std::vector<Hash128>& slices : parts) {
    std::string text;
    for (const Hash128& hash : slices) text += hash.hex();
    list.push_back(std::move(text));
  }
  return list;
}

std::vector<std::vector<Hash128>> split_hashes(const Json& list) {
  std::vector<std::vector<Hash128>> parts;
  for (const Json& entry : list) {
    const auto& text = entry.get_ref<const std::string&>();
    std::vector<Hash128>& slices = parts.emplace_back();
    for (std::size_t at = 0; at < text.size(); at += kHashDigits)
      slices.push_back(hash_of(text.substr(at, kHashDigits)));
  }
  return parts;
}

// Settings, with each text as `spell` has it: paths may hold any bytes.
template <typename Spell>
Json spelled(const Json& settings, const Spell& spell) {
  if (settings.is_string()) return spell(settings.get_ref<const std::string&>());
  if (!settings.is_structured()) return settings;
  Json result = settings;
  for (Json& value : result) value = spelled(value, spell);
  return result;
}

Json settings_at(const Json& run, const char* key) {
  const Json& settings = run.at(key);
  if (!settings.is_null()) (void)settings.get_ref<const Json::object_t&>();
  return spelled(settings, unescaped_bytes);
}

RunRecord run_of(const Json& json) {
  return {.replacing = json.at("replacing").get<bool>(),
          .replaced = json.value("replaced", std::vector<std::string>()),
          .gate = settings_at(json, "gate"),
          .allow = json.at("allow"),
          .sources = json.at("sources"),
          .settings = settings_at(json, "settings")};
}

// Adds what a line says.
void add_fact(const Json& fact, JournalContents& contents) {
  if (fact.contains("identity")) {
    contents.identity = fact.at("identity");
  } else if (fact.contains("run")) {
    contents.runs.push_back(run_of(fact.at("run")));
    Json identity = *contents.identity;
    identity["recipe"]["allow"] = *contents.runs.back().allow;
    contents.identity = std::move(identity);
  } else if (fact.contains("item")) {
    TensorResult& record = contents.items[fact.at("item").get<std::uint32_t>()];
    record = {.source = hashes_of(fact.at("source")), .output = split_hashes(fact.at("output"))};
    if (fact.contains("amax"))
      record.amax = std::bit_cast<float>(fact.at("amax").get<std::uint32_t>());
    if (fact.contains("quality")) record.quality = quality_of(fact.at("quality"));
    if (fact.contains("error")) record.recorded_error = error_of(fact.at("error"));
    if (fact.contains("global")) {
      record.original_global = {
          .value = std::bit_cast<float>(fact.at("global").at(0).get<std::uint32_t>()),
          .divides = fact.at("global").at(1).get<bool>()};
    }
    if (fact.contains("change")) record.change = change_of(fact.at("change"));
    record.keeps_globals = fact.contains("keeps_globals");
    record.keeps_codes = fact.contains("keeps_codes");
    record.inexact_global = fact.contains("inexact_global");
    record.carries_errors = fact.contains("gptq");
  } else if (fact.contains("consumed")) {
    contents.consumed.insert(fact.at("consumed").get<std::string>());
  } else if (fact.contains("complete")) {
    contents.complete = true;
  } else if (fact.contains("publishing")) {
    contents.publishing = true;
    contents.replacing = fact.at("publishing").get<std::string>() == "replacing";
    contents.published = fact.value("names", std::vector<std::string>());
    contents.inspected = fact.contains("inspected");
    contents.consuming = fact.contains("consuming");
  }
}

}  // namespace

bool JournalContents::was_forced() const {
  return std::any_of(runs.begin(), runs.end(), [](const RunRecord& run) { return run.replacing; });
}

std::set<std::string> JournalContents::found_files() const {
  std::set<std::string> files(published.begin(), published.end());
  for (const RunRecord& run : runs) files.insert(run.replaced.begin(), run.replaced.end());
  return files;
}

formats::JsonValue JournalContents::gate() const {
  const auto asking = std::find_if(runs.rbegin(), runs.rend(),
                                   [](const RunRecord& run) { return !run.gate.is_null(); });
  return asking == runs.rend() ? formats::JsonValue() : asking->gate;
}

Journal Journal::create(const std::filesystem::path& path, const Json& identity) {
  Journal journal(Folder::open(path.parent_path()).replace(path.filename(), O_WRONLY), 0);
  journal.append(line_of({{"identity", identity}}));
  sync_directory(path.parent_path());
  return journal;
}

Journal Journal::append_to(const std::filesystem::path& path, const JournalContents& contents) {
  Fd file = Folder::open(path.parent_path()).open(path.filename(), O_WRONLY);
  file.truncate(contents.valid_bytes);
  file.sync();
  return Journal(std::move(file), contents.valid_bytes);
}

std::optional<JournalContents> Journal::read(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  const std::string text = read_text_file(path, kMaxJournalBytes);
  JournalContents contents;
  bool first = true;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::optional<Json> fact = parse_line(std::string_view(text).substr(begin, end - begin));
    if (!fact || first != fact->contains("identity")) break;
    formats::read_members(path.string(), kRemedy, [&] { add_fact(*fact, contents); });
    first = false;
    begin = end + 1;
    contents.valid_bytes = begin;
  }
  if (first) return std::nullopt;
  return contents;
}

void Journal::add_run(const RunRecord& run) {
  Json json = {{"replacing", run.replacing},
               {"gate", spelled(run.gate, escaped_bytes)},
               {"allow", *run.allow},
               {"sources", *run.sources},
               {"settings", spelled(run.settings, escaped_bytes)}};
  if (!run.replaced.empty()) json["replaced"] = run.replaced;
  append(line_of({{"run", std::move(json)}}));
}

void Journal::add_results(const std::map<std::uint32_t, TensorResult>& items) {
  std::string text;
  for (const auto& [item, record] : items) {
    Json line = {{"item", item},
                 {"source", texts_of(record.source)},
                 {"output", joined_texts(record.output)}};
    if (record.amax) line["amax"] = std::bit_cast<std::uint32_t>(*record.amax);
    if (record.quality) line["quality"] = json_of(*record.quality);
    if (record.recorded_error) line["error"] = json_of(*record.recorded_error);
    if (record.original_global) {
      line["global"] = {std::bit_cast<std::uint32_t>(record.original_global->value),
                        record.original_global->divides};
    }
    if (record.change) line["change"] = json_of(*record.change);
    if (record.keeps_globals) line["keeps_globals"] = true;
    if (record.keeps_codes) line["keeps_codes"] = true;
    if (record.inexact_global) line["inexact_global"] = true;
    if (record.carries_errors) line["gptq"] = true;
    text += line_of(line);
  }
  append(text);
}

void Journal::add_complete() {
  append(line_of({{"complete", true}}));
}

void Journal::add_consumed(const std::string& file) {
  append(line_of({{"consumed", file}}));
}

void Journal::add_publishing(bool replacing, bool inspected, bool consuming,
                             const std::vector<std::string>& names) {
  formats::Json fact = {{"publishing", replacing ? "replacing" : "new"}, {"names", names}};
  if (inspected) fact["inspected"] = true;
  if (consuming) fact["consuming"] = true;
  append(line_of(fact));
}

void Journal::append(const std::string& text) {
  file_.write_exact(std::as_bytes(std::span(text)), size_);
  file_.sync_data();
  size_ += text.size();
}

}  // namespace ingot::convert
