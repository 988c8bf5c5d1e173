#include "library/current_error.h"

#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

#include "formats/json/json.h"

namespace ingot::library {
namespace {

Error out_of_memory() {
  return Error(ErrorCode::kLimit, "out of memory (give a smaller --mem-limit)");
}

}  // namespace

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::filesystem::filesystem_error& failure) {
    if (failure.code() == std::errc::not_enough_memory) return out_of_memory();
    return system_error(failure.code().value(), "use", failure.path1().string());
  } catch (const std::system_error& failure) {
    return Error(ErrorCode::kLimit, "the system refuses a thread: {} (lower --threads)",
                 failure.code().message());
  } catch (const formats::Json::exception&) {
    return Error(
        ErrorCode::kCorrupt,
        "a JSON file that was read has a member that is missing or of another kind (was one "
        "changed by hand, or written by another version?)");
  } catch (const std::exception&) {
    // Its words are those of a library, and say nothing to a user.
    return Error(ErrorCode::kInternal,
                 "a fault of ingot's own, at a place where none was expected (please report the "
                 "command, and with which model it happens)");
  }
}

}  // namespace ingot::library
