// The tuner that NCCL finds in this plugin: tuning.h in NCCL's form.
#include "netplugin/abi/tuner.h"

#include <strings.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <span>

#include "netplugin/plugin.h"
#include "netplugin/report.h"
#include "netplugin/tuning.h"

namespace ropewalk::netplugin {
namespace {

using abi::Result;

// Of one communicator.
struct Context {
  std::size_t ranks = 1;
  std::optional<transport::ChannelUse> use;
};

// This library is open when NCCL uses another network, too.
bool other_network_wanted() {
  const char* wanted = std::getenv("NCCL_NET");
  return wanted != nullptr && strcasecmp(wanted, kName) != 0;
}

Result make(std::size_t ranks, std::size_t nodes, void** context) noexcept {
  return guarded("tuner init", [&] {
    if (context == nullptr) throw Error(Errc::kInvalidArgument, "a null pointer for the context");
    *context = nullptr;
    auto made = std::make_unique<Context>();
    made->ranks = ranks;
    if (nodes > 1 && !other_network_wanted()) {
      made->use = Plugin::process().channel_use();
    }
    *context = made.release();
  });
}

Result init(std::size_t ranks, std::size_t nodes, abi::Logger /*logger*/, void** context) noexcept {
  return make(ranks, nodes, context);
}

Result init_named(void** context, std::uint64_t /*comm_id*/, std::size_t ranks, std::size_t nodes,
                  abi::Logger /*logger*/, void* /*domains*/, void* /*constants*/) noexcept {
  return make(ranks, nodes, context);
}

Result get_coll_info(void* context, int /*collective*/, std::size_t bytes, int /*operations*/,
                     float** times, int algorithms, int protocols, int* channels) noexcept {
  const auto* known = static_cast<const Context*>(context);
  if (known == nullptr || !known->use || times == nullptr || channels == nullptr ||
      algorithms <= 0 || protocols <= 0) {
    return abi::kSuccess;
  }
  const auto columns = static_cast<std::size_t>(protocols);
  const std::span<float> table(reinterpret_cast<float*>(times),
                               static_cast<std::size_t>(algorithms) * columns);
  if (const int most = apply(*known->use, bytes, known->ranks, table, columns); most > 0) {
    *channels = most;
  }
  return abi::kSuccess;
}

Result get_coll_info_registered(void* context, int collective, std::size_t bytes, int operations,
                                float** times, int algorithms, int protocols, int /*registered*/,
                                int* channels) noexcept {
  return get_coll_info(context, collective, bytes, operations, times, algorithms, protocols,
                       channels);
}

Result destroy(void* context) noexcept {
  delete static_cast<Context*>(context);
  return abi::kSuccess;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
extern "C" {
#define RW_TABLE __attribute__((visibility("default"))) extern const

RW_TABLE abi::TunerV3 ncclTunerPlugin_v3;
RW_TABLE abi::TunerV4 ncclTunerPlugin_v4;
RW_TABLE abi::TunerV5 ncclTunerPlugin_v5;
RW_TABLE abi::TunerV6 ncclTunerPlugin_v6;

const abi::TunerV3 ncclTunerPlugin_v3 = {
    .name = kName, .init = init, .get_coll_info = get_coll_info, .destroy = destroy};
const abi::TunerV4 ncclTunerPlugin_v4 = {
    .name = kName, .init = init, .get_coll_info = get_coll_info_registered, .destroy = destroy};
const abi::TunerV5 ncclTunerPlugin_v5 = {.name = kName,
                                         .init = init_named,
                                         .get_coll_info = get_coll_info_registered,
                                         .finalize = destroy};
const abi::TunerV6 ncclTunerPlugin_v6 = {.name = kName,
                                         .init = init_named,
                                         .get_coll_info = get_coll_info_registered,
                                         .finalize = destroy,
                                         .get_chunk_size = nullptr};

#undef RW_TABLE
}  // extern "C"
// NOLINTEND(readability-identifier-naming)

}  // namespace ropewalk::netplugin
