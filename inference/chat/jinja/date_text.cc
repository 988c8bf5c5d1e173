#include "inference/chat/jinja/date_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <system_error>

#include <fmt/format.h>

namespace ingot::inference::jinja {
namespace {

constexpr std::array<std::string_view, 12> kMonths = {
    "January", "February", "March",     "April",   "May",      "June",
    "July",    "August",   "September", "October", "November", "December"};
constexpr std::array<std::string_view, 7> kDays = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                   "Thursday", "Friday", "Saturday"};

class Moment {
 public:
  explicit Moment(RenderState& state) : state_(state) {
    const std::string_view now = state.now();
    if (now.empty()) state.fault("'strftime_now' needs the date, and none was given");
    constexpr std::string_view kPattern = "dddd-dd-ddTdd:dd:dd";
    const bool has_shape = (now.size() == 10 || now.size() == kPattern.size()) &&
                           std::equal(now.begin(), now.end(), kPattern.begin(), [](char c, char p) {
                             return p == 'd' ? c >= '0' && c <= '9' : c == p;
                           });
    if (!has_shape) refuse();
    year_ = number(0, 4);
    month_ = number(5, 2);
    day_ = number(8, 2);
    if (now.size() > 10) {
      hour_ = number(11, 2);
      minute_ = number(14, 2);
      second_ = number(17, 2);
    }
    const std::chrono::year_month_day date{std::chrono::year(year_),
                                           std::chrono::month(static_cast<unsigned>(month_)),
                                           std::chrono::day(static_cast<unsigned>(day_))};
    if (!date.ok() || hour_ > 23 || minute_ > 59 || second_ > 60) refuse();
    const std::chrono::sys_days days(date);
    const std::chrono::sys_days new_year(date.year() / std::chrono::January / 1);
    week_day_ = static_cast<int>(std::chrono::weekday(days).c_encoding());
    year_day_ = static_cast<int>((days - new_year).count()) + 1;
  }

  // The text of one conversion; `pad` is false behind '-'.
  [[nodiscard]] std::string conversion(char letter, bool pad) const {
    const auto padded = [&](int value, int width) {
      return pad ? fmt::format("{:0{}}", value, width) : fmt::format("{}", value);
    };
    switch (letter) {
      case 'Y':
        return fmt::format("{:04}", year_);
      case 'y':
        return padded(year_ % 100, 2);
      case 'm':
        return padded(month_, 2);
      case 'd':
        return padded(day_, 2);
      case 'e':
        return pad ? fmt::format("{:2}", day_) : fmt::format("{}", day_);
      case 'j':
        return padded(year_day_, 3);
      case 'H':
        return padded(hour_, 2);
      case 'I':
        return padded((hour_ + 11) % 12 + 1, 2);
      case 'M':
        return padded(minute_, 2);
      case 'S':
        return padded(second_, 2);
      case 'B':
        return std::string(month());
      case 'b':
      case 'h':
        return std::string(month().substr(0, 3));
      case 'A':
        return std::string(day());
      case 'a':
        return std::string(day().substr(0, 3));
      case 'u':
        return fmt::format("{}", week_day_ == 0 ? 7 : week_day_);
      case 'w':
        return fmt::format("{}", week_day_);
      case 'p':
        return hour_ < 12 ? "AM" : "PM";
      case 'F':
        return fmt::format("{:04}-{:02}-{:02}", year_, month_, day_);
      case 'D':
        return fmt::format("{:02}/{:02}/{:02}", month_, day_, year_ % 100);
      case 'T':
        return fmt::format("{:02}:{:02}:{:02}", hour_, minute_, second_);
      case 'R':
        return fmt::format("{:02}:{:02}", hour_, minute_);
      case 'n':
        return "\n";
      case 't':
        return "\t";
      case '%':
        return "%";
      default:
        state_.unsupported(fmt::format("a conversion of 'strftime_now' (byte {} behind '%')",
                                       static_cast<int>(static_cast<unsigned char>(letter))));
    }
  }

 private:
  [[noreturn]] void refuse() const {
    state_.fault(fmt::format("the date '{}' is not YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS",
                             state_.now().substr(0, 40)));
  }
  [[nodiscard]] int number(std::size_t at, std::size_t n) const {
    const std::string_view digits = state_.now().substr(at, n);
    int value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  }
  [[nodiscard]] std::string_view month() const {
    return kMonths.at(static_cast<std::size_t>(month_ - 1));
  }
  [[nodiscard]] std::string_view day() const {
    return kDays.at(static_cast<std::size_t>(week_day_));
  }

  RenderState& state_;
  int year_ = 0, month_ = 0, day_ = 0, hour_ = 0, minute_ = 0, second_ = 0;
  int week_day_ = 0, year_day_ = 0;
};

}  // namespace

std::string date_text(RenderState& state, std::string_view format) {
  const Moment moment(state);
  std::string text;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      text += format[i];
      continue;
    }
    const bool pad = !format.substr(i + 1).starts_with('-');
    i += pad ? 1 : 2;
    if (i >= format.size()) state.fault("the format of 'strftime_now' ends behind '%'");
    text += moment.conversion(format[i], pad);
    state.charge(text.size() / 64);
  }
  return text;
}

}  // namespace ingot::inference::jinja
