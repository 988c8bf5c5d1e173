#include "cli/learning/class_model.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/learning/class_model_text.h"
#include "formats/base/error.h"

extern "C" char** environ;

namespace ingot::cli {

using formats::Json;

WorkFolder::WorkFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "ingot-learn-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr)
    throw Error(ErrorCode::kIo, "no folder can be made there").in_file(name);
  path_ = name;
}

WorkFolder::~WorkFolder() {
  std::error_code failure;
  std::filesystem::remove_all(path_, failure);
}

Json ask_class(const std::string& program, const std::filesystem::path& config,
               const std::filesystem::path& folder, std::chrono::seconds limit) {
  const std::string said = (folder / "said").string(), place = folder.string();
  std::array<std::string, 5> words = {program, "-c", kClassModel,
                                      std::filesystem::absolute(config).string(), place};
  std::array<char*, 6> call{};
  for (std::size_t i = 0; i < words.size(); ++i) call.at(i) = words.at(i).data();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, said.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addchdir_np(&actions, place.c_str());
  pid_t child = 0;
  const int fault = posix_spawnp(&child, program.c_str(), &actions, nullptr, call.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (fault != 0) return {{"why", fmt::format("there is no program {}", program)}};
  const auto end = std::chrono::steady_clock::now() + limit;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return {{"why", fmt::format("{} took longer than {} seconds", program, limit.count())}};
  }
  std::ifstream file(said);
  std::stringstream text;
  text << file.rdbuf();
  try {
    return formats::parse_json(text.str(), program);
  } catch (const Error&) {
    // The interpreter failed before the script could say why.
    return {{"why", fmt::format("{} failed", program)}};
  }
}

}  // namespace ingot::cli
