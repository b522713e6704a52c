#include "core/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace ropewalk {
namespace {

struct Unit {
  std::string_view text;
  double factor;
};

// Splits "1.5M" into 1.5 and "M". Throws where no number stands in front.
std::pair<double, std::string_view> split(std::string_view text, std::string_view what) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number)) {
    throw Error(Errc::kInvalidArgument, "\"{}\" is not a {}", text, what);
  }
  if (number < 0) throw Error(Errc::kInvalidArgument, "\"{}\" is negative", text);
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  return {number, unit};
}

template <std::size_t N>
double factor_of(const std::array<Unit, N>& units, std::string_view unit, std::string_view text,
                 std::string_view what) {
  for (const Unit& known : units) {
    if (known.text == unit) return known.factor;
  }
  throw Error(Errc::kInvalidArgument, "\"{}\" is not a {}: unknown unit \"{}\"", text, what, unit);
}

constexpr double kKi = 1024.0;
constexpr std::array<Unit, 22> kByteUnits = {{{"", 1},
                                              {"B", 1},
                                              {"b", 1},
                                              {"k", kKi},
                                              {"K", kKi},
                                              {"KB", kKi},
                                              {"KiB", kKi},
                                              {"m", kKi* kKi},
                                              {"M", kKi* kKi},
                                              {"MB", kKi* kKi},
                                              {"MiB", kKi* kKi},
                                              {"g", kKi* kKi* kKi},
                                              {"G", kKi* kKi* kKi},
                                              {"GB", kKi* kKi* kKi},
                                              {"GiB", kKi* kKi* kKi},
                                              {"t", kKi* kKi* kKi* kKi},
                                              {"T", kKi* kKi* kKi* kKi},
                                              {"TB", kKi* kKi* kKi* kKi},
                                              {"TiB", kKi* kKi* kKi* kKi},
                                              {"kb", kKi},
                                              {"mb", kKi* kKi},
                                              {"gb", kKi* kKi* kKi}}};
constexpr std::array<Unit, 7> kTimeUnits = {
    {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"min", 60}, {"h", 3600}}};

}  // namespace

std::size_t parse_bytes(std::string_view text) {
  const auto [number, unit] = split(text, "number of bytes");
  const double bytes = number * factor_of(kByteUnits, unit, text, "number of bytes");
  if (bytes >= 9.2e18) throw Error(Errc::kInvalidArgument, "\"{}\" bytes is too large", text);
  return static_cast<std::size_t>(bytes);
}

std::chrono::nanoseconds parse_duration(std::string_view text) {
  const auto [number, unit] = split(text, "duration");
  const double seconds = number * factor_of(kTimeUnits, unit, text, "duration");
  if (seconds > 100.0 * 365 * 86400) {
    throw Error(Errc::kInvalidArgument, "\"{}\" is beyond 100 years", text);
  }
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::llround(seconds * 1e9)));
}

std::int64_t parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(Errc::kInvalidArgument, "\"{}\" is not an integer", text);
  }
  return value;
}

std::string format_bytes(std::size_t bytes) {
  constexpr std::array<std::string_view, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= kKi && unit + 1 < kNames.size()) {
    value /= kKi;
    ++unit;
  }
  if (value == std::floor(value)) return fmt::format("{:.0f} {}", value, kNames[unit]);
  return fmt::format("{:.1f} {}", value, kNames[unit]);
}

std::string format_duration(std::chrono::nanoseconds duration) {
  const double ns = static_cast<double>(duration.count());
  if (ns < 1e3) return fmt::format("{:.0f} ns", ns);
  if (ns < 1e6) return fmt::format("{:.3g} us", ns / 1e3);
  if (ns < 1e9) return fmt::format("{:.3g} ms", ns / 1e6);
  return fmt::format("{:.4g} s", ns / 1e9);
}

}  // namespace ropewalk
