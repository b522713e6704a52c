#include "topology/rates.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

namespace ropewalk::topology {
namespace {

struct PcieGeneration {
  int gen;
  double units;  ///< of 100 Mbit/s per lane, as NCCL counts
  double wire;   ///< GB/s of 16 lanes after encoding
  std::string_view speed;
};

constexpr std::array<PcieGeneration, 6> kPcie{{
    {1, 15, 4, "2.5 GT/s PCIe"},
    {2, 30, 8, "5.0 GT/s PCIe"},
    {3, 60, 15.75, "8.0 GT/s PCIe"},
    {4, 120, 31.5, "16.0 GT/s PCIe"},
    {5, 240, 63, "32.0 GT/s PCIe"},
    {6, 480, 121, "64.0 GT/s PCIe"},
}};

const PcieGeneration& generation(int gen) noexcept {
  for (const PcieGeneration& each : kPcie) {
    if (each.gen == gen) return each;
  }
  return kPcie[gen > 6 ? 5 : 2];
}

/// "16.0 GT/s PCIe" -> "16", "2.5 GT/s" -> "2.5".
std::string_view transfer_rate(std::string_view speed) {
  std::string_view number = speed.substr(0, speed.find(' '));
  if (number.ends_with(".0")) number.remove_suffix(2);
  return number;
}

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return out;
}

}  // namespace

double pcie_capacity(int gen, int width) noexcept {
  return generation(gen).units * (width > 0 ? width : 16) / 80;
}

double pcie_nominal(int gen, int width) noexcept {
  return generation(gen).wire * (width > 0 ? width : 16) / 16;
}

std::optional<int> pcie_gen(std::string_view link_speed) noexcept {
  if (link_speed.find(" GT/s") == std::string_view::npos) return std::nullopt;
  for (const PcieGeneration& each : kPcie) {
    if (transfer_rate(each.speed) == transfer_rate(link_speed)) return each.gen;
  }
  return std::nullopt;
}

std::string_view pcie_link_speed(int gen) noexcept { return generation(gen).speed; }

PcieShape pcie_shape(double gbps) noexcept {
  PcieShape best{3, 16};
  double least = -1;
  for (const int width : {16, 8, 4, 2, 1}) {
    for (const PcieGeneration& each : kPcie) {
      const double difference = std::abs(pcie_nominal(each.gen, width) - gbps);
      if (least < 0 || difference < least * 0.99) {
        least = difference;
        best = {each.gen, width};
      }
    }
  }
  return best;
}

LaneRates nvlink_lane(int compute_capability) noexcept {
  if (compute_capability >= 100) return {50, 40.1};
  if (compute_capability >= 90) return {25, 20.6};
  if (compute_capability == 86) return {14.0625, 12};
  if (compute_capability >= 70) return {25, 20};
  return {20, 18};
}

std::optional<int> compute_capability(std::string_view model) noexcept {
  // Longer names first where one is a prefix of another.
  static constexpr std::array<std::pair<std::string_view, int>, 17> kModels{{
      {"GB300", 103},
      {"GB200", 100},
      {"B300", 103},
      {"B200", 100},
      {"B100", 100},
      {"GH200", 90},
      {"H200", 90},
      {"H100", 90},
      {"H800", 90},
      {"H20", 90},
      {"L40", 89},
      {"A100", 80},
      {"A800", 80},
      {"A40", 86},
      {"V100", 70},
      {"P100", 60},
      {"K2200", 50},
  }};
  const std::string name = upper(model);
  for (const auto& [word, capability] : kModels) {
    if (name.find(word) != std::string::npos) return capability;
  }
  return std::nullopt;
}

double smp_capacity(const CpuIdentity& cpu) noexcept {
  if (cpu.arch == "ppc64") return 32;
  if (cpu.arch == "arm64") return 6;
  if (cpu.vendor == "AuthenticAMD") return 16;
  if (cpu.vendor == "GenuineIntel" && cpu.family == 6) {
    if (cpu.model >= 0xCF) return 40;
    if (cpu.model >= 0x8F) return 22;
    if (cpu.model >= 0x55) return 10;
  }
  return 6;
}

CpuIdentity cpu_with_smp(double gbps) {
  static const std::array<CpuIdentity, 6> kKnown{{
      {"x86_64", "GenuineIntel", 6, 0x8F},
      {"x86_64", "GenuineIntel", 6, 0x55},
      {"x86_64", "GenuineIntel", 6, 0x4F},
      {"x86_64", "AuthenticAMD", 23, 49},
      {"x86_64", "GenuineIntel", 6, 0xCF},
      {"ppc64", "", 0, 0},
  }};
  return *std::min_element(kKnown.begin(), kKnown.end(), [&](const auto& a, const auto& b) {
    return std::abs(smp_capacity(a) - gbps) < std::abs(smp_capacity(b) - gbps);
  });
}

}  // namespace ropewalk::topology
