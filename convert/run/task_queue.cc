#include "convert/run/task_queue.h"

namespace ingot::convert {

std::vector<Task> make_tasks(const Plan& plan, const std::vector<char>& done) {
  std::vector<Task> tasks;
  std::vector<char> has_header(plan.files.size(), 0);
  const auto add_header = [&](std::uint32_t file) {
    if (has_header[file] != 0) return;
    has_header[file] = 1;
    tasks.push_back({.is_header = true, .file = file, .tensors = {}});
  };
  std::vector<std::size_t> task_of_group(plan.groups.size(), 0);
  for (std::uint32_t item = 0; item < plan.tensors.size(); ++item) {
    const PlannedTensor& planned = plan.tensors[item];
    if (planned.n_parts == 0 || done[item] != 0) continue;
    add_header(plan.first_place(planned.parts[0]).file);
    if (planned.group != PlannedTensor::kNone && task_of_group[planned.group] != 0) {
      tasks[task_of_group[planned.group] - 1].tensors.push_back(item);
      continue;
    }
    tasks.push_back({.is_header = false, .tensors = {item}});
    if (planned.group != PlannedTensor::kNone) task_of_group[planned.group] = tasks.size();
  }
  for (std::uint32_t file = 0; file < plan.files.size(); ++file) add_header(file);
  return tasks;
}

}  // namespace ingot::convert
