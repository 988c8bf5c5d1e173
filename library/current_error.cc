#include "library/current_error.h"

#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

namespace ingot::library {

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kLimit, "out of memory (give a smaller --mem-limit)");
  } catch (const std::filesystem::filesystem_error& failure) {
    return system_error(failure.code().value(), "use", failure.path1().string());
  } catch (const std::system_error& failure) {
    return Error(ErrorCode::kLimit, "the system refuses a thread: {} (lower --threads)",
                 failure.code().message());
  } catch (const std::exception& failure) {
    return Error(ErrorCode::kInternal, failure.what());
  }
}

}  // namespace ingot::library
