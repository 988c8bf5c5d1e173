#include "formats/base/foreign_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <new>
#include <system_error>

#include <dirent.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/words.h"

namespace ingot::formats {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kNamesShown = 5;
// The first bytes of a safetensors file; `version ` would be a length beyond any disk.
constexpr std::size_t kLengthOfSafetensors = 8;
constexpr std::string_view kOriginal = "original/";
constexpr std::string_view kCacheFolder = "models--";
constexpr std::string_view kPictures = "pictures";
constexpr std::string_view kSafetensors = ".safetensors";
constexpr std::string_view kAdapterConfig = "adapter_config.json";

// How names of licences begin.
constexpr std::array<std::string_view, 6> kLicences = {"license", "licence",    "notice",
                                                       "copying", "use_policy", "use-policy"};

/// A file ending and what kind of file it marks, for files that are no part of a checkpoint.
struct ForeignEnding {
  std::string_view ending;
  std::string_view reason;
  /// Why a directory that has its weights so is refused; empty where these are no weights.
  std::string_view refusal = {};
};

constexpr std::string_view kGguf = "weights in GGUF";
constexpr std::string_view kPickles = "weights in PyTorch's pickles";
constexpr std::string_view kOtherWeights = "weights in a format that is not read";
constexpr std::string_view kGgufRefusal =
    "holds GGUF files, whose weights are quantized in llama.cpp's formats (fetch the safetensors "
    "release that they were made from)";
constexpr std::string_view kPickleRefusal =
    "holds PyTorch pickles, which can run code when they are read (fetch the safetensors files, "
    "or write them with save_pretrained)";
constexpr std::string_view kPickleFact =
    "is a PyTorch pickle, which can run code when it is read (fetch the safetensors file)";
constexpr std::string_view kWebPage =
    "is a web page, not the file itself (an answer of a server? fetch the file again)";
constexpr std::string_view kOtherRefusal =
    "holds weights in a format that is not read (fetch the safetensors files)";
constexpr std::string_view kDistributedRefusal =
    "holds shards of torch.distributed.checkpoint (accelerate merge-weights DIR OUT makes "
    "safetensors files of them)";
constexpr std::string_view kZeroRefusal =
    "holds DeepSpeed's states, in which each rank has its part of the weights (python "
    "zero_to_fp32.py DIR OUT --safe_serialization gathers them)";

constexpr std::array kEndings = {
    ForeignEnding{".gguf", kGguf, kGgufRefusal},
    ForeignEnding{".ggml", kGguf, kGgufRefusal},
    ForeignEnding{".bin", kPickles, kPickleRefusal},
    ForeignEnding{".bin.index.json", kPickles},
    ForeignEnding{".pt", kPickles, kPickleRefusal},
    ForeignEnding{".pth", kPickles, kPickleRefusal},
    ForeignEnding{".ckpt", kPickles, kPickleRefusal},
    ForeignEnding{".h5", kOtherWeights, kOtherRefusal},
    ForeignEnding{".msgpack", kOtherWeights, kOtherRefusal},
    ForeignEnding{".onnx", kOtherWeights, kOtherRefusal},
    ForeignEnding{".npz", kOtherWeights, kOtherRefusal},
    ForeignEnding{".distcp", kOtherWeights, kDistributedRefusal},
    ForeignEnding{"zero_to_fp32.py", "", kZeroRefusal},
    ForeignEnding{".png", kPictures},
    ForeignEnding{".jpg", kPictures},
    ForeignEnding{".jpeg", kPictures},
    ForeignEnding{".gif", kPictures},
    ForeignEnding{".webp", kPictures},
    ForeignEnding{".svg", kPictures},
    ForeignEnding{kAdapterConfig,
                  "readers would look for another model, of which this were a change"},
};

const ForeignEnding* find_ending(std::string_view path) {
  const std::string name = lower_case(path);
  const auto row = std::find_if(kEndings.begin(), kEndings.end(), [&](const ForeignEnding& entry) {
    return name.ends_with(entry.ending);
  });
  return row == kEndings.end() ? nullptr : &*row;
}

}  // namespace

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  const auto close = [](DIR* listing) { ::closedir(listing); };
  // The standard library's iterator ends the program where it gets no memory.
  const std::unique_ptr<DIR, decltype(close)> listing(::opendir(directory.c_str()), close);
  while (listing != nullptr) {
    errno = 0;
    const dirent* entry = ::readdir(listing.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno == ENOMEM) throw std::bad_alloc();
  std::sort(names.begin(), names.end());
  return names;
}

void require_own_format(const fs::path& directory) {
  const std::vector<std::string> names = names_in(directory);
  if (std::ranges::binary_search(names, kAdapterConfig) &&
      !std::ranges::binary_search(names, "config.json")) {
    throw Error(
        ErrorCode::kUnsupported,
        "holds an adapter (LoRA), which is a change of another model (ingot convert MODEL OUT "
        "--lora {} folds it into that model)",
        directory.string())
        .in_file(directory.string());
  }
  const auto is_own = [](const std::string& name) {
    return name.ends_with(kSafetensors) || name.ends_with(".safetensors.index.json");
  };
  if (std::any_of(names.begin(), names.end(), is_own)) return;
  std::vector<std::string> models;
  std::copy_if(names.begin(), names.end(), std::back_inserter(models),
               [](const std::string& name) { return name.starts_with(kCacheFolder); });
  std::error_code failure;
  if (!models.empty() && !fs::exists(directory / "config.json", failure)) {
    throw Error(ErrorCode::kInvalidArgument,
                "is the hub's cache of many models (name one of them: {})", first_names(models))
        .in_file(directory.string());
  }
  for (const std::string& name : names) {
    const ForeignEnding* row = find_ending(name);
    if (row == nullptr || row->refusal.empty()) continue;
    throw Error(ErrorCode::kUnsupported, "{}: {}; only safetensors files are read", row->refusal,
                name)
        .in_file(directory.string());
  }
}

std::string_view foreign_start(std::string_view start) {
  struct Row {
    std::string_view start, fact;
  };
  // Eight bytes tell a pointer from the length of a header.
  constexpr std::array kRows = {
      Row{"version https://git-lfs.github.com/",
          "is a Git LFS pointer, not the file itself (run git lfs pull, or fetch the file from the "
          "hub)"},
      Row{"<!DOCTYPE", kWebPage},
      Row{"<!doctype", kWebPage},
      Row{"<html", kWebPage},
      Row{"<?xml", kWebPage},
      Row{"GGUF",
          "is a GGUF file, quantized in llama.cpp's formats (fetch the safetensors release "
          "that it was made from)"},
      Row{"PK\x03\x04", kPickleFact},
      Row{"\x80\x02", kPickleFact},
  };
  const auto* const row = std::ranges::find_if(kRows, [&](const Row& known) {
    return start.size() >= kLengthOfSafetensors &&
           known.start.starts_with(start.substr(0, known.start.size()));
  });
  return row == kRows.end() ? std::string_view() : row->fact;
}

std::string_view left_out_reason(std::string_view path) {
  if (is_licence(path)) return {};
  if (path.starts_with(kOriginal)) return kOtherWeights;
  if (path.ends_with(kSafetensors)) return kUnlistedWeights;
  const ForeignEnding* row = find_ending(path);
  return row == nullptr ? std::string_view() : row->reason;
}

bool is_licence(std::string_view path) {
  const std::string name = lower_case(path.substr(path.find_last_of('/') + 1));
  const ForeignEnding* row = find_ending(name);
  const bool is_weights = name.ends_with(kSafetensors) || (row != nullptr && !row->refusal.empty());
  return !is_weights && std::ranges::any_of(kLicences, [&](std::string_view start) {
    return name.starts_with(start);
  });
}

std::string first_names(std::vector<std::string> names) {
  const std::size_t n = names.size();
  names.resize(std::min(n, kNamesShown));
  return fmt::format("{}{}", fmt::join(names, ", "),
                     n > kNamesShown ? fmt::format(" and {} more", n - kNamesShown) : "");
}

std::vector<std::string> left_out_remarks(std::span<const LeftOut> files) {
  std::vector<std::pair<std::string_view, std::vector<std::string>>> by_reason;
  for (const LeftOut& file : files) {
    auto at = std::find_if(by_reason.begin(), by_reason.end(),
                           [&](const auto& entry) { return entry.first == file.reason; });
    if (at == by_reason.end()) at = by_reason.insert(at, {file.reason, {}});
    at->second.push_back(file.path);
  }
  std::vector<std::string> remarks;
  for (auto& [reason, names] : by_reason)
    remarks.push_back(fmt::format("left out, {}: {}", reason, first_names(std::move(names))));
  return remarks;
}

}  // namespace ingot::formats
