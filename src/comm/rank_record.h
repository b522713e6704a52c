// The record that every rank sends to the others when it joins, and what follows from the records:
// which ranks share memory.
#pragma once

#include <memory>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "comm/runtime.h"
#include "link/host_segment.h"
#include "link/links.h"
#include "machine/placement.h"
#include "tune/machine_constants.h"
#include "tune/tuner.h"

namespace ropewalk::comm {

struct HostInfo {
  tune::GroupFacts facts;
  std::vector<link::PeerReach> reach;  ///< by rank
  machine::Seats seats;
  bool topology_given = false;  ///< some rank has the setting TOPOLOGY
  std::shared_ptr<link::HostSegment> segment;
  executor::FifoShape shape;
  int channels = 1;  ///< of collectives; the one after them carries point-to-point traffic
  tune::MachineConstants constants;  ///< rank 0's, so that all choose identically
};

/// Collective over all ranks. Throws on every rank when a rank has other settings (by rank and
/// field), no shared memory, or another version of Ropewalk.
HostInfo exchange_records(bootstrap::Bootstrap& bootstrap, const Config& config, Runtime& runtime,
                          Deadline deadline);

/// A slot's size between ranks that share memory, where the setting SLOT_BYTES gives none.
inline constexpr std::uint32_t kSlotBytes = 32 << 10;
/// Short messages have slots of their own in memory links, four times as many: a root that shares
/// its core with its readers goes on longer before their turn. Measured on an EPYC: with a stride
/// of 2 KiB or less, or for messages of 2 KiB, all-reduces of two ranks take up to 1.3 of the time.
inline constexpr std::uint32_t kShortSlots = 32;
inline constexpr std::uint32_t kShortBytes = 1 << 10;
inline constexpr std::uint32_t kShortStride = 2560;

/// Identity of this host for the question who shares memory: boot id and network namespace, or the
/// setting HOST_ID. Two namespaces on one machine count as two hosts.
std::string host_identity(const Config& config, int rank);

}  // namespace ropewalk::comm
