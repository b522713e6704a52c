#include "fabric.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <new>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace software_sisci {
namespace {

constexpr std::uint64_t kReady = 0x534f465453434900 + kLayout;

// When a process began, in the kernel's ticks: with its number, that names it for good.
std::uint64_t start_time(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) return 0;
  std::istringstream fields(text.substr(end_of_name + 2));
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return 0;  // it has ended and was not waited for
  for (int i = 0; i < 19 && fields >> field; ++i) {
  }
  return std::strtoull(field.c_str(), nullptr, 10);
}

bool alive(const ProcessEntry& process) { return start_time(process.pid) == process.started; }

}  // namespace

Fabric::Fabric(std::string path, unsigned host) : path_(std::move(path)) {
  try {
    open_file();
    enter(host);
  } catch (...) {
    release();
    throw;
  }
  // Not before: a process that leaves would take the file for nobody's.
  flock(file_, LOCK_UN);
}

Fabric::~Fabric() {
  leave();
  release();
}

void Fabric::enter(unsigned host) {
  const Lock lock(*this);
  reclaim();
  for (unsigned i = 0; i < kMaxProcesses; ++i) {
    ProcessEntry& entry = state_->processes[i];
    if (entry.pid != 0) continue;
    entry = {getpid(), start_time(getpid()), host, false};
    process_ = i;
    return;
  }
  throw std::runtime_error("too many processes use this fabric");
}

void Fabric::release() noexcept {
  if (state_ != nullptr) munmap(state_, sizeof(State));
  if (file_ >= 0) close(file_);
}

void Fabric::leave() noexcept {
  flock(file_, LOCK_EX);
  {
    const Lock lock(*this);
    if (process_ != kNobody) reclaim_process(process_);
    process_ = kNobody;
    reclaim();
    bool last = true;
    for (const ProcessEntry& entry : state_->processes) last = last && entry.pid == 0;
    if (last) unlink(path_.c_str());
  }
  flock(file_, LOCK_UN);
  announce();
}

// Leaves it locked.
void Fabric::open_file() {
  for (;;) {
    file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file_ < 0) throw std::runtime_error(path_ + ": " + std::strerror(errno));
    flock(file_, LOCK_EX);
    struct stat status {};
    if (fstat(file_, &status) == 0 && status.st_nlink > 0) break;
    close(file_);  // the last user took it away meanwhile
  }
  std::uint64_t ready = 0;
  // A file of another layout is emptied; its memory then reads as zero, which is a valid state.
  if (pread(file_, &ready, sizeof ready, 0) != sizeof ready || ready != kReady) {
    (void)!ftruncate(file_, 0);
  }
  if (ftruncate(file_, sizeof(State)) != 0) {
    throw std::runtime_error(path_ + ": " + std::strerror(errno));
  }
  void* mapped = mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (mapped == MAP_FAILED) throw std::runtime_error(path_ + ": " + std::strerror(errno));
  state_ = static_cast<State*>(mapped);
  if (state_->ready != kReady) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state_->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    state_->next_generation = 2;
    state_->ready = kReady;
  }
}

Fabric::Lock::Lock(Fabric& fabric) : fabric_(fabric) {
  // A process that died inside left at worst one entry half written; reclaim() frees it.
  if (pthread_mutex_lock(&fabric_.state_->lock) == EOWNERDEAD) {
    pthread_mutex_consistent(&fabric_.state_->lock);
  }
}

Fabric::Lock::~Lock() { pthread_mutex_unlock(&fabric_.state_->lock); }

void Fabric::announce() noexcept {
  state_->change.fetch_add(1);
  syscall(SYS_futex, &state_->change, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Fabric::wait_for_change(std::uint32_t seen, int milliseconds) noexcept {
  const timespec time{milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
  syscall(SYS_futex, &state_->change, FUTEX_WAIT, seen, &time, nullptr, 0);
}

SegmentEntry* Fabric::find_segment(unsigned host, unsigned id) {
  for (std::size_t i = 0; i < state_->segments_end; ++i) {
    SegmentEntry& entry = state_->segments[i];
    if (entry.generation % 2 == 1 && entry.host == host && entry.id == id) return &entry;
  }
  return nullptr;
}

InterruptEntry* Fabric::find_interrupt(unsigned host, unsigned adapter, unsigned number,
                                       bool data) {
  for (std::size_t i = 0; i < state_->interrupts_end; ++i) {
    InterruptEntry& entry = state_->interrupts[i];
    if (entry.generation % 2 == 1 && entry.host == host && entry.adapter == adapter &&
        entry.number == number && entry.data == data) {
      return &entry;
    }
  }
  return nullptr;
}

void Fabric::add_event(SegmentEntry& segment, SegmentEvent event) {
  segment.events[segment.events_written++ % kSegmentEvents] = event;
}

void Fabric::cut_connections(SegmentEntry& segment) {
  const auto index = static_cast<std::uint32_t>(&segment - state_->segments.data());
  for (std::size_t i = 0; i < state_->connections_end; ++i) {
    ConnectionEntry& connection = state_->connections[i];
    if (connection.used && connection.segment == index &&
        connection.generation == segment.generation) {
      connection.cut = true;
    }
  }
}

void Fabric::free_segment(SegmentEntry& segment) {
  cut_connections(segment);
  ++segment.generation;
}

void Fabric::free_connection(ConnectionEntry& connection) {
  SegmentEntry& segment = state_->segments[connection.segment];
  if (segment.generation == connection.generation) {
    --segment.connections;
    add_event(segment, {2, connection.node, connection.adapter});  // SCI_CB_DISCONNECT
  }
  connection.used = false;
}

void Fabric::free_interrupt(InterruptEntry& interrupt) { ++interrupt.generation; }

void Fabric::reclaim_process(unsigned index) {
  for (std::size_t i = 0; i < state_->connections_end; ++i) {
    ConnectionEntry& connection = state_->connections[i];
    if (connection.used && connection.process == index) {
      connection.copying = 0;
      free_connection(connection);
    }
  }
  for (std::size_t i = 0; i < state_->segments_end; ++i) {
    SegmentEntry& segment = state_->segments[i];
    if (segment.generation % 2 == 1 && segment.process == index) free_segment(segment);
  }
  for (std::size_t i = 0; i < state_->interrupts_end; ++i) {
    InterruptEntry& interrupt = state_->interrupts[i];
    if (interrupt.generation % 2 == 1 && interrupt.process == index) free_interrupt(interrupt);
  }
  state_->processes[index] = {};
}

bool Fabric::reclaim() {
  bool found = false;
  for (unsigned i = 0; i < kMaxProcesses; ++i) {
    const ProcessEntry& entry = state_->processes[i];
    if (entry.pid == 0 || i == process_ || alive(entry)) continue;
    reclaim_process(i);
    found = true;
  }
  return found;
}

}  // namespace software_sisci
