// Rules about loading a plugin, its properties, and its life cycle.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>

#include "check_plugin/connections.h"
#include "check_plugin/rules.h"
#include "check_plugin/transfers.h"
#include "check_plugin/usage.h"

namespace ropewalk::check_plugin {
namespace {

constexpr int kOldestReleaseCode = 0;
constexpr int kNewestReleaseCode = 8;

void check_library(Session& session) {
  try {
    session.load();
  } catch (const Failed& failed) {
    // That it is no plugin is for the next rule.
    if (failed.expected == "the library loads") throw;
  }
}

void check_symbol(Session& session) { session.load(); }

void check_members(Session& session) {
  session.load();
  // init may fill the struct in.
  void* context = nullptr;
  if (session.plugin().missing_members().empty()) return;
  const auto missing = session.plugin().missing_members();
  if (std::find(missing.begin(), missing.end(), "init") == missing.end()) {
    context = session.new_context();
  }
  const auto still = session.plugin().missing_members();
  if (!still.empty()) {
    throw Failed{"all functions that the version must have",
                 fmt::format("NULL: {}", fmt::join(still, ", "))};
  }
  session.end_context(context);
}

void check_name(Session& session) {
  session.load();
  const char* name = session.plugin().name();
  if (name == nullptr) throw Failed{"a name before init", "NULL"};
  const std::string text = name;
  if (text.empty() || text.size() > 254) {
    throw Failed{"a name of 1 to 254 characters", fmt::format("{} characters", text.size())};
  }
}

void check_init(Session& session) {
  session.load();
  void* context = nullptr;
  const abi::Result result = session.init(&context);
  const int code = result;
  if (code < kOldestReleaseCode || code > kNewestReleaseCode) {
    throw Failed{"success or an error code of NCCL's from init", describe(result)};
  }
  if (result != abi::kSuccess) {
    throw Skipped{fmt::format("a machine that the plugin can use: init says {}", describe(result))};
  }
}

void check_devices(Session& session) {
  session.load();
  void* context = session.new_context();
  int count = kUnwritten;
  session.expect(session.plugin().devices(&count), Call::kDevices);
  if (count == 0) throw Skipped{"a device that the plugin can use: devices() counts 0"};
  if (count < 0 || count > 1024) {
    throw Failed{"a number of devices", output(count)};
  }
  session.end_context(context);
}

void each_device(Session& session, const auto& body) {
  session.start();
  for (int device = 0; device < session.device_count(); ++device) {
    Properties properties;
    session.expect(session.plugin().properties(device, properties), Call::kGetProperties);
    body(device, properties);
  }
}

void check_properties_written(Session& session) {
  each_device(session, [](int device, const Properties& properties) {
    if (properties.unwritten.empty()) return;
    throw Failed{
        "getProperties writes every field",
        fmt::format("device {}: not written: {}", device, fmt::join(properties.unwritten, ", "))};
  });
}

void check_properties(Session& session) {
  each_device(session, [&](int device, const Properties& found) {
    const auto need = [device](bool right, std::string_view expected, const auto& came) {
      if (!right) {
        throw Failed{std::string(expected), fmt::format("device {}: {}", device, came)};
      }
    };
    need((found.ptr_support & abi::kHostPointer) != 0, "HOST in ptrSupport", found.ptr_support);
    need((found.ptr_support & ~7) == 0, "ptrSupport of HOST, CUDA, DMABUF", found.ptr_support);
    need((found.ptr_support & abi::kDmaBufPointer) == 0 || session.plugin().has_dma_buf(),
         "regMrDmaBuf where ptrSupport has DMABUF", "NULL");
    need(found.max_comms > 0, "maxComms above 0", found.max_comms);
    need(found.max_recvs >= 1 && found.max_recvs <= 64, "maxRecvs of 1 to 64", found.max_recvs);
    need(std::isfinite(found.latency) && found.latency >= 0, "a latency", found.latency);
    need(found.speed < 100'000'000, "a speed in Mbit/s", found.speed);
    need(found.reg_is_global == 0 || found.reg_is_global == 1, "regIsGlobal 0 or 1",
         found.reg_is_global);
    need(found.force_flush == 0 || found.force_flush == 1, "forceFlush 0 or 1", found.force_flush);
    need(found.max_p2p_bytes >= 1 && found.max_p2p_bytes <= abi::kLargestMessageLimit,
         "maxP2pBytes of 1 to 1 TiB", found.max_p2p_bytes);
    need(found.max_coll_bytes >= 1 && found.max_coll_bytes <= abi::kLargestMessageLimit,
         "maxCollBytes of 1 to 1 TiB", found.max_coll_bytes);
    need(found.rail_id >= -1, "railId of -1 or more", found.rail_id);
    need(found.plane_id >= -1, "planeId of -1 or more", found.plane_id);
    if (session.plugin().version() >= 9) {
      need(found.member_count == 1 && found.members[0] == device,
           "vProps of a plain device: itself alone", fmt::format("ndevs {}", found.member_count));
    }
    need(
        found.net_device_type == 0 || (found.net_device_type == 1 && found.net_device_version == 7),
        "netDeviceType HOST, or UNPACK of version 7", found.net_device_type);
  });
}

void check_device_names(Session& session) {
  std::set<std::string> names;
  each_device(session, [&](int device, const Properties& found) {
    if (!found.name) {
      const auto& unwritten = found.unwritten;
      const bool left = std::find(unwritten.begin(), unwritten.end(), "name") != unwritten.end();
      throw Failed{"a name for each device",
                   fmt::format("device {}: {}", device, left ? "not written" : "NULL")};
    }
    const std::string& name = *found.name;
    if (name.empty() || name.size() > 254 || name.find('"') != std::string::npos) {
      throw Failed{"names of 1 to 254 characters without quotes",
                   fmt::format("device {}: \"{}\"", device, name)};
    }
    if (!names.insert(name).second) {
      throw Failed{"another name for each device", fmt::format("\"{}\" twice", name)};
    }
  });
}

void check_pci_path(Session& session) {
  each_device(session, [](int device, const Properties& found) {
    if (!found.pci_path) return;
    std::error_code error;
    const std::filesystem::path canonical = std::filesystem::canonical(*found.pci_path, error);
    // What does not resolve hangs below the first CPU, as NULL does.
    if (!error && canonical != *found.pci_path) {
      throw Failed{"a pciPath without symbolic links",
                   fmt::format("device {}: {} is {}", device, *found.pci_path, canonical.string())};
    }
  });
}

void check_contexts(Session& session) {
  if (session.load(); !session.plugin().has_contexts()) {
    throw Skipped{"contexts: version 11 and later"};
  }
  session.start();
  void* second = session.new_context();
  const Comms first_comms = connect_self(session, session.context());
  const Comms second_comms = connect_self(session, second);
  close_comms(session, first_comms);
  session.end_context(session.context());
  // The second must not care.
  close_comms(session, second_comms);
  close_comms(session, connect_self(session, second));
  session.end_context(second);
}

void check_finalize_null(Session& session) {
  if (session.load(); !session.plugin().has_contexts()) {
    throw Skipped{"contexts: version 11 and later"};
  }
  void* context = session.new_context();
  const abi::Result result = session.plugin().finalize(nullptr);
  // After a failed init NCCL ignores the result: it is enough that the call returns. An init that
  // succeeds may give NULL too, and then the result counts as that of any finalize.
  if (context == nullptr && result != abi::kSuccess) {
    throw Failed{"success from finalize of the NULL that init gave", describe(result)};
  }
}

void check_init_again(Session& session) {
  session.start();
  close_comms(session, connect_self(session, session.context()));
  session.end_context(session.context());
  void* again = session.new_context();
  int count = kUnwritten;
  session.expect(session.plugin().devices(&count), Call::kDevices);
  if (count != session.device_count()) {
    throw Failed{fmt::format("{} devices after a second init", session.device_count()),
                 output(count)};
  }
  close_comms(session, connect_self(session, again));
  session.end_context(again);
}

// Resources of a thread that is about to end may still be listed for a moment.
bool threads_gone(Session& session, std::size_t before) {
  return session.within(std::chrono::milliseconds(500),
                        [&] { return usage_now().threads <= before; });
}

void use_once(Session& session) {
  session.load();
  session.start();
  close_comms(session, connect_self(session, session.context()));
  session.end_context(session.context());
}

void check_unload(Session& session) {
  // Libraries that the plugin uses may start threads and keep files until the process ends, as CUDA
  // does, and stay loaded. So the plugin is loaded twice: resources of the plugin itself appear
  // again.
  const std::size_t at_first = usage_now().threads;
  use_once(session);
  session.plugin().unload();
  threads_gone(session, at_first);
  const Usage before = usage_now();
  use_once(session);
  const auto no_thread_left = [&](const char* when) {
    if (threads_gone(session, before.threads)) return;
    throw Failed{fmt::format("no thread of the plugin after {}", when),
                 fmt::format("{} more than before", usage_now().threads - before.threads)};
  };
  if (session.plugin().has_contexts()) no_thread_left("finalize");
  if (session.plugin().unload()) {
    no_thread_left("dlclose");
    const Usage after = usage_now();
    if (after.descriptors > before.descriptors) {
      throw Failed{"no descriptor left after dlclose",
                   fmt::format("{} more than before", after.descriptors - before.descriptors)};
    }
  }
  // NCCL loads it again for the next communicator.
  use_once(session);
}

void check_virtual_device(Session& session) {
  session.start();
  if (!session.plugin().has(Call::kMakeVDevice)) {
    throw Skipped{"virtual devices: makeVDevice is NULL or the version has none"};
  }
  if (session.device_count() < 2) throw Skipped{"two devices to merge"};
  int merged = kUnwritten;
  const abi::Result result = session.plugin().make_virtual_device(&merged, {0, 1});
  if (result != abi::kSuccess) return;  // they cannot be merged, which NCCL takes
  int count = kUnwritten;
  session.expect(session.plugin().devices(&count), Call::kDevices);
  if (merged < session.device_count() || merged >= count) {
    throw Failed{
        fmt::format("a new device, from {} on, that devices() counts", session.device_count()),
        fmt::format("device {}, of {}", output(merged), output(count))};
  }
  Properties found;
  session.expect(session.plugin().properties(merged, found), Call::kGetProperties);
  if (found.members != std::vector<int>{0, 1}) {
    throw Failed{"vProps of a virtual device: its members",
                 fmt::format("{}", fmt::join(found.members, ", "))};
  }
}

void check_attributes(Session& session) {
  session.start();
  if (!session.plugin().has(Call::kSetNetAttr)) {
    throw Skipped{"attributes: setNetAttr is NULL or the version has none"};
  }
  // Undefined ones, as before a connection, then those of a transfer. NCCL ignores the result.
  const abi::CommAttributes any{-1, -1, -1, -1};
  abi::NetAttributes attributes{any, any, ~0U, ~0U, ~0U};
  session.plugin().set_net_attributes(session.context(), &attributes);
  attributes = {{1, 1, 2, 2}, {1, 1, 2, 2}, 1U << 4, 1U << 1, 1U << 2};
  session.plugin().set_net_attributes(session.context(), &attributes);
  close_comms(session, connect_self(session, session.context()));
}

constexpr std::string_view kLoading = "src/plugin/plugin_open.cc, src/plugin/net.cc";
constexpr std::string_view kNet = "src/plugin/net.cc: ncclNetPluginInit";
constexpr std::string_view kTopology = "src/graph/xml.cc, src/graph/topo.cc: ncclTopoProcessNet";

constexpr Rule kLoadingRules[] = {
    {"library", "The library loads with immediate, local binding",
     "NCCL opens plugins with RTLD_NOW | RTLD_LOCAL; one that lacks a symbol is passed over.",
     kLoading, "", 1, 1, check_library},
    {"symbol", "It exports a network plugin",
     "NCCL looks for ncclNetPlugin_vN, newest first, and takes the first that there is.", kLoading,
     "library", 1, 1, check_symbol},
    {"members", "It has all functions of its version",
     "NCCL calls them without a check: a NULL crashes the job.", kNet, "symbol", 1, 1,
     check_members},
    {"name", "It has a name before init",
     "NCCL compares the name with NCCL_NET before it calls init.", kNet, "symbol", 1, 1,
     check_name},
    {"init", "init answers with success or an error code of NCCL's",
     "An error switches the plugin off for the process; other values are passed on as they are.",
     kNet, "members", 1, 1, check_init},
    {"devices", "devices counts at least one", "No device switches the plugin off for the process.",
     kNet, "init", 1, 1, check_devices},
    {"properties-written", "getProperties writes every field of its version that NCCL reads",
     "NCCL does not clear the struct before the call in every release.", kTopology, "devices", 1, 1,
     check_properties_written},
    {"properties", "Properties are in their ranges",
     "maxP2pBytes or maxCollBytes of 0 or above 1 TiB ends the set-up with an error; without HOST "
     "there is no memory for LL and for flushes; another device type refuses the plugin.",
     kTopology, "properties-written", 1, 1, check_properties},
    {"device-names", "Each device has a name of its own",
     "The name is the key of the NIC in the topology: two of one name become one.", kTopology,
     "devices", 1, 1, check_device_names},
    {"pci-path", "pciPath is free of symbolic links",
     "NCCL locates the NIC by the components of the path.", kTopology, "devices", 1, 1,
     check_pci_path},
    {"contexts", "Contexts of several communicators are independent",
     "From version 11 each communicator has a context; they begin and end in any order.", kNet,
     "self-connection", 1, 1, check_contexts},
    {"finalize-null", "finalize after an init that left NULL returns",
     "2.28.3 to 2.29.3 call finalize after a failed init, with whatever init left; they ignore the "
     "result.",
     kNet, "init", 1, 1, check_finalize_null},
    {"init-again", "init works again in the same process",
     "The plugin is initialised anew for the first communicator after the last one ended.", kNet,
     "self-connection", 1, 1, check_init_again},
    {"unload", "After the last communicator the library can be unloaded, and loaded again",
     "2.22 to 2.25, and 2.28 on, call dlclose at the last communicator: a thread left behind runs "
     "into nothing, a descriptor is lost.",
     kLoading, "self-connection", 1, 2, check_unload},
    {"virtual-device", "makeVDevice refuses, or adds a device with its members",
     "NCCL merges ports of one NIC, and asks for the merged device's properties.",
     "src/graph/topo.cc: ncclTopoMakeVnic", "devices", 1, 1, check_virtual_device},
    {"attributes", "setNetAttr takes hints at any time",
     "Called before connect and during transfers; its result is ignored.",
     "src/transport/net.cc: setNetAttrs", "self-connection", 1, 1, check_attributes},
};

}  // namespace

std::span<const Rule> loading_rules() { return std::span(kLoadingRules).first(10); }

std::span<const Rule> life_cycle_rules() { return std::span(kLoadingRules).subspan(10); }

}  // namespace ropewalk::check_plugin
