// Variables of NCCL, and one of PyTorch, that say the same as a setting of Ropewalk. The setting's
// own variable, and a settings file, come first.
#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "capi/nccl/guard.h"
#include "comm/runtime.h"
#include "core/log.h"
#include "executor/block/launch.h"

namespace ropewalk::nccl {
namespace {

// NCCL's words that the log does not have are left out: they name parts that are not here.
std::string known_subsystems(std::string_view given) {
  constexpr std::string_view kKnown =
      ",INIT,COLL,P2P,SHM,NET,GRAPH,TUNING,ENV,ALLOC,CALL,BOOTSTRAP,ALL,";
  std::string kept;
  if (given.starts_with('^')) {
    kept = "^";
    given.remove_prefix(1);
  }
  const std::size_t start = kept.size();
  while (!given.empty()) {
    const std::size_t comma = given.find(',');
    const std::string word(given.substr(0, comma));
    if (!word.empty() && kKnown.find("," + word + ",") != std::string_view::npos) {
      if (kept.size() > start) kept += ',';
      kept += word;
    }
    given = comma == std::string_view::npos ? std::string_view() : given.substr(comma + 1);
  }
  return kept.size() == start ? std::string() : kept;
}

void take(const char* variable, Setting setting, std::string_view name,
          std::optional<std::string> value) {
  if (!value.has_value()) return;
  comm::Runtime& runtime = comm::Runtime::process();
  const Config config = runtime.config();
  const std::string& source = config.source(setting);
  if (source != "default" && !source.starts_with("NCCL_")) return;
  runtime.set(name, *value, variable);
}

std::optional<std::string> environment(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return std::string(text);
}

// A positive number, as much of it as there are blocks; NCCL says nothing of others.
std::optional<std::string> block_count(const std::optional<std::string>& text) {
  if (!text.has_value()) return std::nullopt;
  const long number = std::strtol(text->c_str(), nullptr, 10);
  if (number < 1) return std::nullopt;
  return std::to_string(std::min<long>(number, executor::kMaxBlocks));
}

void apply() noexcept {
  try {
    std::optional<std::string> level = environment("NCCL_DEBUG");
    // Without a wish NCCL says nothing.
    if (!level.has_value()) level = "NONE";
    if (*level == "ABORT") level = "WARN";
    take("NCCL_DEBUG", Setting::kDebug, "DEBUG", level);
    if (const auto given = environment("NCCL_DEBUG_SUBSYS")) {
      take("NCCL_DEBUG_SUBSYS", Setting::kDebugSubsys, "DEBUG_SUBSYS", known_subsystems(*given));
    }
    take("NCCL_DEBUG_FILE", Setting::kDebugFile, "DEBUG_FILE", environment("NCCL_DEBUG_FILE"));
    // A level of distance there; only "never" has a counterpart.
    if (environment("NCCL_P2P_DISABLE") == "1" || environment("NCCL_P2P_LEVEL") == "LOC" ||
        environment("NCCL_P2P_LEVEL") == "0") {
      take("NCCL_P2P_DISABLE", Setting::kPeerAccess, "PEER_ACCESS", "0");
    }
    // Each is known by an older name, too.
    for (const char* variable : {"NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"}) {
      take(variable, Setting::kMinBlocks, "MIN_BLOCKS", block_count(environment(variable)));
    }
    for (const char* variable : {"NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"}) {
      take(variable, Setting::kMaxBlocks, "MAX_BLOCKS", block_count(environment(variable)));
    }
    take("NCCL_CGA_CLUSTER_SIZE", Setting::kClusterSize, "CGA_CLUSTER_SIZE",
         environment("NCCL_CGA_CLUSTER_SIZE"));
    // Flags; the others choose among NVIDIA's algorithms.
    if (const auto policy = environment("NCCL_CTA_POLICY");
        policy.has_value() && (std::atoi(policy->c_str()) & kNcclCtaPolicyZero) != 0) {
      take("NCCL_CTA_POLICY", Setting::kCopyEngines, "COPY_ENGINES", "on");
    }
    // A plugin that NCCL would load, too. (Its words for none, and for one in the program itself.)
    if (const auto plugin = environment("NCCL_PROFILER_PLUGIN");
        plugin != "none" && plugin != "STATIC_PLUGIN") {
      take("NCCL_PROFILER_PLUGIN", Setting::kProfilerPlugin, "PROFILER_PLUGIN", plugin);
    }
    // PyTorch's symmetric memory on NCCL: its kernels read windows of ncclMemAlloc's memory.
    if (environment("TORCH_SYMMMEM") == "NCCL") {
      take("TORCH_SYMMMEM", Setting::kMemAlloc, "MEM_ALLOC", "pages");
    }
    take("NCCL_HOSTID", Setting::kHostId, "HOST_ID", environment("NCCL_HOSTID"));
    take("NCCL_SOCKET_IFNAME", Setting::kSocketIfname, "SOCKET_IFNAME",
         environment("NCCL_SOCKET_IFNAME"));
  } catch (const std::exception& error) {
    // The call that comes first will fail with the same reason where it is a setting's own.
    report("reading the environment", error.what());
  }
}

std::once_flag read_once;

}  // namespace

void read_environment() noexcept {
  // call_once throws only what apply() throws.
  std::call_once(read_once, apply);
}

void reread_environment() noexcept {
  std::call_once(read_once, [] {});
  apply();
}

}  // namespace ropewalk::nccl
