// What the processes of a fabric share: a file, mapped by all of them, with a table of each kind of
// object. There is no server.
//
// The file lies beside the settings file (`<settings file>.state`); without a settings file in
// /dev/shm, where its name tells the layout, as libraries of several builds may be in use. It goes
// with the last process that uses it, however that ends: what a killed process left is taken back
// by the others, and by the next that comes. Segments are anonymous files, which others open
// through /proc/<pid>/fd, so they have no name and end with their last user.
//
// All tables are guarded by the lock (Fabric::Lock); what is atomic is also read without.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "settings.h"

namespace software_sisci {

constexpr unsigned kLayout = 5;  // of the file; raised with each change of State
constexpr unsigned kNobody = ~0U;
constexpr std::size_t kMaxProcesses = 256;
constexpr std::size_t kMaxSegments = 16384;
constexpr std::size_t kMaxConnections = 32768;
constexpr std::size_t kMaxInterrupts = 4096;
constexpr std::size_t kMaxAdapters = 8;
constexpr std::size_t kSegmentEvents = 32;
constexpr std::size_t kInterruptBytes = 128;
constexpr std::size_t kInterruptSlots = 16;

struct ProcessEntry {
  pid_t pid = 0;  // 0: free
  std::uint64_t started = 0;
  unsigned host = 0;
  bool gpu = false;  // it has attached or reached GPU memory
};

enum class Backing : std::uint32_t { kNone, kLibrary, kUser, kGpu };

// How other processes open GPU memory.
struct GpuShare {
  bool shared = false;  // whether they can
  bool virtual_memory = false;
  int descriptor = -1;  // in the owner's process
  std::array<unsigned char, 16> gpu{};
  std::array<unsigned char, 64> handle{};
  std::uint64_t allocation_bytes = 0;
  std::uint64_t offset = 0;   // of the segment in the allocation
  std::uint64_t address = 0;  // in the owner's process
  std::uint64_t bytes = 0;
};

struct SegmentEvent {
  std::uint32_t reason = 0;
  std::uint32_t node = 0;
  std::uint32_t adapter = 0;
};

struct SegmentEntry {
  std::atomic<std::uint64_t> generation;  // even: free; raised when it is taken and when it is left
  unsigned process = 0;
  unsigned host = 0;
  unsigned id = 0;
  std::uint64_t bytes = 0;
  Backing backing = Backing::kNone;
  int file = -1;              // in the owner's process
  std::uint64_t address = 0;  // of kUser and kGpu
  std::array<bool, kMaxAdapters> prepared{};
  std::array<bool, kMaxAdapters> available{};
  bool shared = false;
  bool ready = false;      // it was available on some adapter
  bool broadcast = false;  // it belongs to the group of its id, at node 252
  bool unicast = true;     // it can be connected to at its own node
  GpuShare gpu;
  std::array<std::atomic<std::uint64_t>, kMaxProcesses / 64> opened;  // by whom, of GPU memory
  std::uint32_t connections = 0;
  std::uint64_t events_written = 0;
  std::array<SegmentEvent, kSegmentEvents> events{};
};

// A connection of a process to a segment, or to an interrupt.
struct ConnectionEntry {
  unsigned process = kNobody;
  std::atomic<bool> used;
  std::atomic<bool> cut;     // by force, or since the segment went
  std::atomic<int> copying;  // transfers that are touching the segment's memory
  std::uint32_t segment = 0;
  std::uint64_t generation = 0;
  unsigned node = 0;
  unsigned adapter = 0;
};

struct InterruptEntry {
  std::atomic<std::uint64_t> generation;  // as a segment's
  unsigned process = 0;
  unsigned host = 0;
  unsigned adapter = 0;
  unsigned number = 0;
  bool data = false;
  std::atomic<std::uint64_t> written;  // triggers, or messages
  std::atomic<std::uint64_t> read;
  std::array<std::uint32_t, kInterruptSlots> lengths{};
  std::array<std::array<char, kInterruptBytes>, kInterruptSlots> messages{};
};

struct State {
  std::uint64_t ready = 0;
  pthread_mutex_t lock{};
  std::atomic<std::uint32_t> change;  // raised with every change; a futex
  std::uint64_t next_generation = 0;
  std::array<ProcessEntry, kMaxProcesses> processes;
  std::array<SegmentEntry, kMaxSegments> segments;
  std::array<ConnectionEntry, kMaxConnections> connections;
  std::array<InterruptEntry, kMaxInterrupts> interrupts;
  // No entry at or after these was ever used, so that searches are short.
  std::size_t segments_end = 0;
  std::size_t connections_end = 0;
  std::size_t interrupts_end = 0;
};

/// This process's view of the file. Threads: any.
class Fabric {
 public:
  /// @throws std::runtime_error
  Fabric(std::string path, unsigned host);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  /// Takes this process out, and the file away after the last one. The tables stay readable.
  void leave() noexcept;

  class Lock {
   public:
    explicit Lock(Fabric& fabric);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    Fabric& fabric_;
  };

  [[nodiscard]] State& state() noexcept { return *state_; }
  [[nodiscard]] unsigned process() const noexcept { return process_; }

  /// Wakes waiting threads of all processes.
  void announce() noexcept;
  /// Waits until something changes after `seen` was read, or for `milliseconds`.
  void wait_for_change(std::uint32_t seen, int milliseconds) noexcept;

  // The rest needs the lock.
  SegmentEntry* find_segment(unsigned host, unsigned id);
  InterruptEntry* find_interrupt(unsigned host, unsigned adapter, unsigned number, bool data);
  void add_event(SegmentEntry& segment, SegmentEvent event);
  void free_segment(SegmentEntry& segment);
  void free_connection(ConnectionEntry& connection);
  /// Cuts all connections to a segment. Their transfers may still be in the middle of a copy.
  void cut_connections(SegmentEntry& segment);
  void free_interrupt(InterruptEntry& interrupt);
  /// Takes back what ended processes left. @return whether there was any
  bool reclaim();

 private:
  void open_file();
  void enter(unsigned host);
  void release() noexcept;
  void reclaim_process(unsigned index);

  std::string path_;
  int file_ = -1;
  State* state_ = nullptr;
  unsigned process_ = kNobody;
};

}  // namespace software_sisci
