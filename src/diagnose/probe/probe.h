// Tries one path of this machine that collectives need, and says what works, how fast, and why not.
//
// A probe really moves data and compares it: that a device is listed proves nothing. Probes may
// take seconds, and a broken driver may hold one for ever: run them in a process that can be ended.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ropewalk::diagnose::probe {

enum class Outcome {
  kPassed,
  kDegraded,  ///< works, but slower than it could, or in part
  kFailed,
  kSkipped,  ///< there is nothing to try
};

/// "passed", "degraded", "failed", "skipped".
std::string_view name(Outcome outcome) noexcept;

struct Check {
  std::string what;  ///< a few words: "kernel-assisted copy"
  Outcome outcome = Outcome::kPassed;
  std::string found{};           ///< what came
  std::string cause{};           ///< the likely reason of what did not pass, and what to do
  std::optional<double> gbps{};  ///< 10^9 bytes per second
  std::optional<double> latency_us{};
};

using Checks = std::vector<Check>;

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// /dev/shm and anonymous memory, shared by two processes; reading another process's memory.
/// Forks: for processes of one thread.
Checks shared_memory();

/// Names of all network interfaces, loopback first, up or not.
std::vector<std::string> interfaces();
/// Messages over the TCP transport from this host to itself by one interface's address, and what
/// the driver says of the link. What leaves the host is not tried: that takes another host.
Checks interface(const std::string& interface_name);

/// Ports of RDMA adapters, by what their driver says.
Checks rdma();

/// Adapters of PCIe bridges: whether libsisci and its driver are there, links, and messages of this
/// host to itself over each adapter.
Checks sisci_adapters();

/// Fabrics through libfabric: the library, the provider that is taken, the limit of locked memory,
/// and over each device messages of this host to itself, and to memory of each GPU and from it.
Checks fabrics();

/// Omni-Path through libpsm2: the library and its adapters, the limit of locked memory, access to
/// the adapters, and over each messages of this host to itself, and to memory of each GPU and from
/// it.
Checks omni_path();

/// Rails: one connection of this host with itself over all devices of the setting RAILS; each of
/// them by name, and why it is left out.
Checks several_devices();

/// One GPU with the host: copies in both directions, a kernel that exchanges flags and data with
/// the host while it runs. @throws Error kInvalidUsage without GPUs
Checks gpu(int device);
/// Two GPUs: peer access, copies in both directions, kernels resident on both that exchange flags
/// and data, and the path through host memory.
Checks gpu_pair(int first, int second);

/// The request {"path": "shared-memory" | "interface" | "rdma" | "sisci" | "psm2" | "ofi" | "rails"
/// | "gpu" | "gpu-pair", "name": TEXT, "devices": [N...]} as JSON: {"checks": [{what, outcome,
/// found, cause, gbps, latency_us}...]}; for
/// {"path": "list"} {"interfaces": [...], "gpus": [...], "why_no_gpu": TEXT}.
/// @throws Error kInvalidArgument for another request
std::string run(std::string_view request);

}  // namespace ropewalk::diagnose::probe
