#include "cli/report/traffic_report.h"

#include <chrono>

#include <fmt/format.h>

#include "formats/base/figures.h"
#include "formats/json/json.h"

namespace ingot::cli {
namespace {

using Seconds = std::chrono::duration<double>;

}  // namespace

std::string traffic_summary(const inference::TrafficByCollective& traffic) {
  inference::Traffic all;
  for (const auto& [what, of] : traffic) {
    all.n_messages += of.n_messages;
    all.n_bytes += of.n_bytes;
    all.hidden += of.hidden;
    all.waited += of.waited;
  }
  const double waited = Seconds(all.waited).count(), hidden = Seconds(all.hidden).count();
  const double whole = waited + hidden;
  return fmt::format(
      "rank 0 sent {} in {} messages and waited {:.2f} s for other ranks; {:.0f}% of the time of "
      "exchanges was hidden by work",
      bytes_text(all.n_bytes), all.n_messages, waited, whole > 0 ? 100 * hidden / whole : 0.0);
}

std::string traffic_lines(const inference::TrafficByCollective& traffic) {
  std::string text;
  for (const auto& [what, of] : traffic) {
    formats::Json line = formats::Json::object();
    if (what.layer != inference::Collective::kNoLayer) line["layer"] = what.layer;
    line["collective"] = std::string(what.name);
    line["group"] = std::string(inference::group_name(what.group));
    line["times"] = of.n_meetings;
    line["messages"] = of.n_messages;
    line["bytes"] = of.n_bytes;
    line["hidden_seconds"] = Seconds(of.hidden).count();
    line["waited_seconds"] = Seconds(of.waited).count();
    text += line.dump() + "\n";
  }
  return text;
}

}  // namespace ingot::cli
