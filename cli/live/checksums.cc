#include "cli/live/checksums.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>

#include "engines/live/live_answer.h"
#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/base/words.h"
#include "formats/json/json.h"

namespace ingot::cli {
namespace {

// libcurl's interface for one transfer, whose numbers have been the same since version 7.16 (2006;
// docs/libcurl/ABI.md: options are never renumbered). Declared here, so that nothing is needed to
// build what a few users load. Source: include/curl/curl.h.
struct Curl;
struct CurlList;
enum CurlOption : int {
  kConnectTimeout = 78,
  kErrorBuffer = 10010,
  kFollowLocation = 52,
  kHttpHeader = 10023,
  kNoProgress = 43,
  kNoSignal = 99,
  kPostFields = 10015,
  kPostFieldSize = 60,
  kProgressData = 10057,
  kProgressFunction = 20219,
  kProtocols = 181,
  kProxy = 10004,
  kTimeout = 13,
  kUrl = 10002,
  kWriteData = 10001,
  kWriteFunction = 20011,
};
constexpr int kResponseCode = 0x200002, kCurlOk = 0;
constexpr long kHttpProtocol = 1, kHttpsProtocol = 2;
constexpr std::size_t kErrorBytes = 256;
constexpr long kConnectSeconds = 10;
constexpr std::string_view kCurlLibrary = "libcurl.so.4";

struct CurlFunctions {
  Curl* (*easy_init)();
  void (*easy_cleanup)(Curl*);
  int (*easy_setopt)(Curl*, int, ...);
  int (*easy_perform)(Curl*);
  int (*easy_getinfo)(Curl*, int, ...);
  const char* (*easy_strerror)(int);
  CurlList* (*slist_append)(CurlList*, const char*);
  void (*slist_free_all)(CurlList*);
};

CurlFunctions load_curl() {
  void* const library = ::dlopen(kCurlLibrary.data(), RTLD_NOW | RTLD_LOCAL);
  const auto refuse = [] {
    const char* const why = ::dlerror();
    throw Error(ErrorCode::kUnsupported,
                "engines are asked through libcurl, which is not usable: {} (install the package "
                "libcurl4, or fetch the answer and give it to --live-answer)",
                why != nullptr ? why : "dlopen fails");
  };
  if (library == nullptr) refuse();
  CurlFunctions curl{};
  const auto find = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) refuse();
  };
  find(curl.easy_init, "curl_easy_init");
  find(curl.easy_cleanup, "curl_easy_cleanup");
  find(curl.easy_setopt, "curl_easy_setopt");
  find(curl.easy_perform, "curl_easy_perform");
  find(curl.easy_getinfo, "curl_easy_getinfo");
  find(curl.easy_strerror, "curl_easy_strerror");
  find(curl.slist_append, "curl_slist_append");
  find(curl.slist_free_all, "curl_slist_free_all");
  return curl;
}

const CurlFunctions& curl_functions() {
  static const CurlFunctions loaded = load_curl();
  return loaded;
}

struct Address {
  bool is_https = false;
  std::string host;
  bool has_path = false;
};

Address address_of(const std::string& url) {
  const auto refuse = [&](std::string_view fact) {
    throw Error(ErrorCode::kInvalidArgument, "--live '{}' {}", printable(url), fact);
  };
  constexpr std::string_view kHttp = "http://", kHttps = "https://";
  Address address{.is_https = url.starts_with(kHttps), .host = {}, .has_path = false};
  if (!address.is_https && !url.starts_with(kHttp))
    refuse("does not begin with http:// or https://");
  std::string_view rest = std::string_view(url).substr((address.is_https ? kHttps : kHttp).size());
  for (const char c : rest) {
    if (c <= ' ' || c == '\x7f' || c == '\\') refuse("has a blank or a control character");
  }
  if (rest.find('#') != rest.npos || rest.find('?') != rest.npos)
    refuse("has a query, and the only one that is made has none");
  const std::string_view authority = rest.substr(0, rest.find('/'));
  address.has_path = authority.size() < rest.size() && rest.substr(authority.size()) != "/";
  if (authority.find('@') != authority.npos)
    refuse("has a name or password (a token comes from the variable INGOT_LIVE_TOKEN)");
  if (authority.starts_with('[')) {
    address.host = authority.substr(0, authority.find(']') + 1);
  } else {
    address.host = authority.substr(0, authority.find(':'));
  }
  if (address.host.empty()) refuse("names no host");
  return address;
}

bool is_loopback(const std::string& host) {
  const std::string name = lower_case(host);
  if (name == "localhost" || name == "[::1]") return true;
  return name.starts_with("127.") && name.find_first_not_of("0123456789.") == name.npos &&
         std::ranges::count(name, '.') == 3;
}

void require_private(const LiveEndpoint& endpoint, const Address& address) {
  if (address.is_https || is_loopback(address.host)) return;
  if (!endpoint.allows_http) {
    throw Error(ErrorCode::kInvalidArgument,
                "--live {}: plain HTTP to another host, where anyone on the way may answer (take "
                "https://, a tunnel to this host, or --allow-http)",
                printable(endpoint.url));
  }
  if (!endpoint.token.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--live {}: a token is not sent by plain HTTP to another host",
                printable(endpoint.url));
  }
}

struct Transfer {
  std::string body;
  bool is_too_long = false;
  const std::function<bool()>* stop_requested = nullptr;
};

std::size_t take_body(const char* bytes, std::size_t size, std::size_t n, void* data) {
  auto& transfer = *static_cast<Transfer*>(data);
  if (transfer.body.size() + size * n > engines::kMaxLiveBytes) {
    transfer.is_too_long = true;
    return 0;
  }
  transfer.body.append(bytes, size * n);
  return size * n;
}

int ask_stop(void* data, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
  const auto& transfer = *static_cast<const Transfer*>(data);
  return *transfer.stop_requested && (*transfer.stop_requested)() ? 1 : 0;
}

struct Response {
  long code = 0;
  std::string body;
};

Response post_checksum(const LiveEndpoint& endpoint, const std::string& url) {
  const CurlFunctions& curl = curl_functions();
  const std::unique_ptr<Curl, void (*)(Curl*)> handle(curl.easy_init(), curl.easy_cleanup);
  if (handle == nullptr) throw Error(ErrorCode::kIo, "libcurl makes no transfer");
  std::unique_ptr<CurlList, void (*)(CurlList*)> headers(nullptr, curl.slist_free_all);
  const auto add = [&](const std::string& header) {
    CurlList* const longer = curl.slist_append(headers.get(), header.c_str());
    if (longer == nullptr) throw std::bad_alloc();
    (void)headers.release();
    headers.reset(longer);
  };
  add("Content-Type: application/json");
  add("Accept: application/json");
  add("Expect:");
  if (!endpoint.token.empty()) add("Authorization: Bearer " + endpoint.token);
  Transfer transfer{.body = {}, .is_too_long = false, .stop_requested = &endpoint.stop_requested};
  std::array<char, kErrorBytes> fault{};
  const auto set = [&](CurlOption option, auto value) {
    const int result = curl.easy_setopt(handle.get(), option, value);
    if (result != kCurlOk)
      throw Error(ErrorCode::kUnsupported, "libcurl does not take its option {}: {}",
                  static_cast<int>(option), curl.easy_strerror(result));
  };
  set(kUrl, url.c_str());
  set(kProtocols, kHttpProtocol | kHttpsProtocol);
  set(kFollowLocation, 0L);
  set(kProxy, "");
  set(kNoSignal, 1L);
  set(kConnectTimeout, kConnectSeconds);
  set(kTimeout, static_cast<long>(endpoint.timeout_seconds));
  set(kHttpHeader, headers.get());
  set(kPostFields, engines::kLiveRequest.data());
  set(kPostFieldSize, static_cast<long>(engines::kLiveRequest.size()));
  set(kWriteFunction, &take_body);
  set(kWriteData, static_cast<void*>(&transfer));
  set(kProgressFunction, &ask_stop);
  set(kProgressData, static_cast<void*>(&transfer));
  set(kNoProgress, 0L);
  set(kErrorBuffer, fault.data());
  const int result = curl.easy_perform(handle.get());
  if (transfer.is_too_long) {
    throw Error(ErrorCode::kLimit, "answers with more than {} bytes", engines::kMaxLiveBytes)
        .in_file(url);
  }
  if (endpoint.stop_requested && endpoint.stop_requested())
    throw Error(ErrorCode::kInterrupted, "stopped while an engine was asked");
  if (result != kCurlOk) {
    throw Error(ErrorCode::kIo, "{}",
                printable(fault[0] != '\0' ? fault.data() : curl.easy_strerror(result)))
        .in_file(url);
  }
  Response response{.code = 0, .body = std::move(transfer.body)};
  curl.easy_getinfo(handle.get(), kResponseCode, &response.code);
  return response;
}

// The words of an engine about its own error.
std::string engine_words(const std::string& body) {
  try {
    const formats::Json json = formats::parse_json(body, "answer");
    for (const char* key : {"detail", "error", "message"}) {
      if (const std::string text = formats::text_at(json, key); !text.empty())
        return ": " + printable(text.substr(0, 300));
    }
  } catch (const Error&) {
    // A page of some proxy.
  }
  return {};
}

}  // namespace

std::string ask_checksums(const LiveEndpoint& endpoint) {
  constexpr long kOk = 200, kNotFound = 404, kUnauthorized = 401, kForbidden = 403;
  const Address address = address_of(endpoint.url);
  require_private(endpoint, address);
  for (const char c : endpoint.token) {
    if (c < ' ' || c == '\x7f')
      throw Error(ErrorCode::kInvalidArgument, "INGOT_LIVE_TOKEN has a control character");
  }
  std::vector<std::string> urls = {endpoint.url};
  if (!address.has_path) {
    const std::string base = endpoint.url.ends_with('/')
                                 ? endpoint.url.substr(0, endpoint.url.size() - 1)
                                 : endpoint.url;
    urls.clear();
    for (const engines::Engine engine : {engines::Engine::kVllm, engines::Engine::kSglang})
      urls.push_back(base + std::string(engines::live_path(engine)));
  }
  for (const std::string& url : urls) {
    Response response = post_checksum(endpoint, url);
    if (response.code == kOk) return std::move(response.body);
    if (response.code == kNotFound && url != urls.back()) continue;
    const char* const remedy =
        response.code == kNotFound
            ? " (vLLM has this end point from 0.32 on, with VLLM_SERVER_DEV_MODE=1)"
        : response.code == kUnauthorized || response.code == kForbidden
            ? " (the variable INGOT_LIVE_TOKEN gives the key of its operator)"
        : response.code / 100 == 3 ? " (redirects are not followed: give the address itself)"
                                   : "";
    throw Error(ErrorCode::kUnsupported, "answers with HTTP status {}{}{}", response.code,
                engine_words(response.body), remedy)
        .in_file(url);
  }
  return {};
}

}  // namespace ingot::cli
