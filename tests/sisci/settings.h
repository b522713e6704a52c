// The settings file of the software library: lines `key value...`; '#' starts a comment. A line
// `at_host N key value...` counts for the processes of host N alone.
//
// It is read again when it changes, so a link can go down and come up while programs run. Without a
// file everything works and nothing is limited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace software_sisci {

enum class Iommu {
  kWorking,
  kAbsent,  // registering memory is refused
  kBroken,  // registering and attaching memory succeeds, transfers from and to it move nothing
};

struct Settings {
  // The fabric. Host and adapter count from 0; adapters of equal number are cabled together.
  unsigned hosts = 8;
  unsigned adapters = 1;
  std::map<std::pair<unsigned, unsigned>, unsigned>
      node_ids;                           // others follow a rule, see node_id()
  std::map<std::string, unsigned> names;  // of hosts, besides host0, host1, ...
  unsigned bus = 0x17;                    // of adapter 0 on PCI; others follow
  unsigned link_width = 8;
  unsigned link_generation = 3;
  unsigned links = 1;                        // of each adapter
  std::map<unsigned, unsigned> link_widths;  // by link, where they differ from link_width; 0: down
  unsigned multicast_groups = 64;  // as PCI Express has at most; 0: adapters without multicast

  // What the API's description permits and adapters do not do: SCIRemoveSegment is busy while peers
  // are connected, SCIUnmapSegment while the map has a sequence, and a DMA queue, which must have
  // one entry or more, takes no vector with more.
  bool strict = false;

  bool driver = true;      // false: initializing works, opening does not
  bool gpu_memory = true;  // false: attaching it is refused, as without the peer-memory interface
  std::string cuda_library = "libcuda.so.1";
  Iommu iommu = Iommu::kWorking;
  std::set<std::pair<unsigned, unsigned>> links_down;  // host, adapter

  // Transfers are counted in each process, from 1.
  bool attach_error = false;  // a transfer from or to attached memory fails when it is started
  std::uint64_t lose_transfer = 0;   // this one reports success but moves no data
  bool lose_all_transfers = false;   // and all after it
  bool lose_gpu_reads = false;       // so do all from GPU memory that are not into it,
  bool lose_gpu_writes = false;      // all into GPU memory that are not from it,
  bool lose_gpu_to_gpu = false;      // all from GPU memory into GPU memory
  std::uint64_t fail_transfer = 0;   // this one ends in the state ERROR
  bool transfer_from_memory = true;  // false: transfers from plain memory are not supported

  // Stores into mapped remote memory are held back, and arrive at a flush or a little later. The
  // faults of flushes are those of segments of one node.
  bool delayed_stores = false;
  unsigned store_delay_ms = 0;   // after the last flush; 0: as soon as the library looks
  std::uint64_t torn_flush = 0;  // every Nth flush, the last word arrives before the others
  std::uint64_t lost_flush = 0;  // every Nth flush, the first word never arrives

  double megabytes_per_second = 0;  // of each adapter; 0: as fast as memory is
  double latency_us = 0;            // of each transfer

  std::size_t max_segments = 0;    // of each host; 0: no limit
  std::size_t max_contiguous = 0;  // bytes of a segment in the library's memory
  std::size_t max_mapped = 0;      // bytes of all mapped remote memory of a process
  std::size_t max_dma_queues = 0;  // of a process
  std::size_t data_interrupt_bytes = 64;
  std::size_t data_interrupt_slots = 8;

  /// By default neither consecutive from 0 nor computable from the host's number alone.
  [[nodiscard]] unsigned node_id(unsigned host, unsigned adapter) const;
  [[nodiscard]] bool link_up(unsigned host, unsigned adapter) const {
    return !links_down.contains({host, adapter});
  }
};

/// @param host that the process is on
/// @return false, with the reason in `why`, when a line makes no sense
bool read_settings(const std::string& path, unsigned host, Settings& settings, std::string& why);

}  // namespace software_sisci

/// Makes the library of this process read the file now, if it has changed, as it does by itself now
/// and then.
extern "C" __attribute__((visibility("default"))) void software_sisci_read_settings();
