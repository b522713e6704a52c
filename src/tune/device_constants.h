// The cost model's constants for the GPUs of a communicator (device_pricing.h): measured once
// for a machine, and kept.
//
// The built-in constants are a fit to sweeps over all sizes on one kind of machine. A few
// operations are timed on this machine as on that one; the ratios give this
// machine's constants. A difference within the model's error counts as none.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "executor/block/links.h"

namespace ropewalk::tune {

/// Seconds, bytes per second. The defaults are of GPUs that NVLink joins: fitted to sweeps over two
/// H200 (benchmarks/device), within a quarter of all of them.
struct DeviceConstants {
  /// By protocol: simple, ll, ll128.
  double launch[executor::kNumProtocols] = {4e-6, 1.75e-6, 2.7e-6};
  double hop[executor::kNumProtocols] = {3.5e-6, 0.8e-6, 0.7e-6};
  /// What each step of a rank adds to the latency beside those of the longest path: its links are
  /// waited for in turn (four H200: all-gathers, all-to-alls and two_shot up to 512 KiB).
  double step[executor::kNumProtocols] = {0, 0.35e-6, 0.25e-6};
  /// At least this for each further unit that a rank sends, where several blocks do so (the same;
  /// one block takes no longer for three peers than for one).
  double fan[executor::kNumProtocols] = {0, 0.4e-6, 0};
  double link_rate = 350e9;  ///< one direction, what kernels reach
  /// What ranks that send to one, two or more others in turn, or receive from them, reach of it
  /// (four H100).
  double spread[3] = {1, 0.94, 0.87};
  /// One direction, through the host's memory beside the links between GPUs' memories; 0: not
  /// measured.
  double hybrid_rate = 0;
  double hybrid_one_way_rate = 0;  ///< the same while the other direction is free
  /// Between hosts, where ranks are on several: what leaves one of them while as much comes in, or
  /// while nothing does, and what goes over the link between two ranks; the latency of each hop,
  /// and what each further message adds that a rank sends or receives. Fitted to four H100 as two
  /// hosts over TCP's loopback; host_path() has what windows between hosts reach there, which
  /// kernels write (benchmarks/results/hierarchical.txt).
  double network_rate = 8.5e9;
  double network_one_way_rate = 17e9;
  double network_link_rate = 9e9;
  double network_hop[executor::kNumProtocols] = {2.2e-5, 1.3e-5, 0};
  double network_message = 8e-6;
  /// Protocol ll: what the thread that lays out a rank's data word by word sends and receives in
  /// all (two H100 as two hosts: benchmarks/results/hosts-2xh100.txt).
  double network_ll_rate = 0.5e9;
  /// Rate at which one block reads operands and writes results.
  double block_rate[executor::kNumProtocols] = {24e9, 7.8e9, 18.7e9};
  /// The same of simple, of blocks in clusters.
  double cluster_block_rate = 60e9;
  /// Of the time that a pipeline takes to fill: the rest is hidden by blocks that are further, all
  /// of it in protocol simple, but not in rooted operations: there the other ranks have nothing to
  /// do until then.
  double fill = 0.1;
  double rooted_fill = 2;
};

/// Of GPUs that reach each other only through the host's memory.
DeviceConstants host_path();

/// Seconds of one operation in a graph, float32, by the algorithm `ring`. 0: not measured.
struct DeviceTimes {
  static constexpr std::size_t kShortBytes = 64;  ///< of a unit
  static constexpr std::array<std::size_t, executor::kNumProtocols> kBlockBytes = {
      std::size_t{1} << 20, std::size_t{64} << 10, std::size_t{256} << 10};
  static constexpr std::size_t kLinkBytes = std::size_t{16} << 20;

  std::array<double, executor::kNumProtocols> gather{};  ///< a short all-gather, by one block
  std::array<double, executor::kNumProtocols> reduce{};  ///< a short all-reduce, by one block
  std::array<double, executor::kNumProtocols> block{};  ///< all-gather of kBlockBytes, by one block
  double link = 0;                                      ///< all-gather of kLinkBytes, by all blocks
  /// The same through the host's memory, of GPUs that have other links, too; and a broadcast.
  double hybrid = 0;
  double hybrid_one_way = 0;
};

/// What the built-in constants go with: two GPUs, with peer access or without.
struct DeviceBase {
  DeviceConstants constants;
  DeviceTimes times;
};
DeviceBase device_base(bool peer_access);

/// `base`'s constants, each changed by the ratio in which `times` of `ranks` GPUs differ from
/// `base`'s. What makes no sense changes nothing.
DeviceConstants scaled(const DeviceBase& base, const DeviceTimes& times, int ranks);

/// Microseconds, for the log.
std::string describe(const DeviceTimes& times);

nlohmann::json to_json(const DeviceConstants& constants);
/// @throws std::exception when a number is missing or makes no sense
DeviceConstants device_constants_of(const nlohmann::json& entry);

/// What the tuning file (tuning_store.h) has of these GPUs, if anything.
std::optional<DeviceConstants> kept_device_constants(const std::string& path,
                                                     const std::string& name);

}  // namespace ropewalk::tune
