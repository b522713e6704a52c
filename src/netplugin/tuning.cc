#include "netplugin/tuning.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "core/log.h"
#include "netplugin/abi/tuner.h"

namespace ropewalk::netplugin {
namespace {

// Microseconds that nothing takes.
constexpr float kNever = 1e9F;

struct Variable {
  const char* name;
  const char* value;
};

// NCCL lets GPUs and a network exchange data without a stop in host memory only where they are
// close by PCIe; the devices here are not there, and reach all GPUs of the host.
constexpr Variable kGpuMemory = {"NCCL_NET_GDR_LEVEL", "SYS"};
// A copy by a GPU is started in some 5 us, in which NVLink moves 2 MiB.
constexpr Variable kLongMessages[] = {{"NCCL_BUFFSIZE", "16777216"},
                                      {"NCCL_P2P_NET_CHUNKSIZE", "2097152"},
                                      {"NCCL_NCHANNELS_PER_NET_PEER", "8"}};

}  // namespace

int apply(const transport::ChannelUse& use, std::size_t bytes, std::size_t ranks,
          std::span<float> times, std::size_t protocols) {
  const bool is_long =
      use.most_channels > 0 && bytes > use.flagged_bytes * std::max<std::size_t>(1, ranks);
  bool simple = false;
  for (std::size_t row = 0; row + protocols <= times.size(); row += protocols) {
    const auto can = [&](std::size_t protocol) {
      return protocol < protocols && times[row + protocol] >= 0;
    };
    const bool has_simple = can(abi::kProtocolSimple);
    const bool has_ll = can(abi::kProtocolLl);
    simple = simple || has_simple;
    if (is_long && has_simple && has_ll) times[row + abi::kProtocolLl] = kNever;
    // No provider promises that lines of 128 bytes arrive whole.
    if (can(abi::kProtocolLl128) && (has_simple || has_ll)) {
      times[row + abi::kProtocolLl128] = kNever;
    }
  }
  if (!is_long || !simple) return 0;
  const double best =
      std::ceil(std::sqrt(static_cast<double>(bytes) / static_cast<double>(use.channel_bytes)));
  return static_cast<int>(std::clamp<double>(best, use.fewest_channels, use.most_channels));
}

void set_variables(const std::optional<transport::ChannelUse>& use, bool without_pci_path) {
  std::string made;
  const auto want = [&](const char* name, const char* value) {
    if (std::getenv(name) != nullptr || setenv(name, value, 1) != 0) return;
    made += std::string(made.empty() ? "" : " ") + name + "=" + value;
  };
  if (without_pci_path) want(kGpuMemory.name, kGpuMemory.value);
  if (use && use->most_channels > 0) {
    want("NCCL_MIN_NCHANNELS", std::to_string(use->most_channels).c_str());
  }
  if (use && use->long_gpu_messages && without_pci_path) {
    for (const Variable& variable : kLongMessages) want(variable.name, variable.value);
  }
  if (!made.empty()) log::info(log::kNet, "set, as they were not: {}", made);
}

}  // namespace ropewalk::netplugin
