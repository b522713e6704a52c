// Local and remote segments: their lifetime, who may connect, and the events of each side.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "library.h"

using namespace software_sisci;

namespace software_sisci {

int open_file_of(pid_t process, int file) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

std::byte* map_file(int file, std::size_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  require(mapped != MAP_FAILED, SCI_ERR_NOSPC);
  return static_cast<std::byte*>(mapped);
}

void close_memory(int file, std::byte* memory, std::size_t bytes) {
  if (memory != nullptr) munmap(memory, rounded(bytes));
  if (file >= 0) close(file);
}

}  // namespace software_sisci

namespace {

bool whole_pages(std::size_t value, std::size_t page) { return value % page == 0; }

SegmentEntry& take_entry(Library& mine, const sci_local_segment& segment) {
  State& state = mine.fabric().state();
  const std::size_t limit = mine.settings()->max_segments;
  std::size_t of_host = 0;
  SegmentEntry* free = nullptr;
  for (std::size_t i = 0; i < state.segments_end; ++i) {
    SegmentEntry& entry = state.segments[i];
    if (entry.generation % 2 == 0) {
      if (free == nullptr) free = &entry;
    } else if (entry.host == mine.host()) {
      ++of_host;
    }
  }
  require(limit == 0 || of_host < limit, SCI_ERR_NOSPC);
  if (free == nullptr) {
    require(state.segments_end < kMaxSegments, SCI_ERR_NOSPC);
    free = &state.segments[state.segments_end++];
  }
  SegmentEntry& entry = *free;
  entry.process = mine.fabric().process();
  entry.host = mine.host();
  entry.id = segment.id;
  entry.bytes = segment.bytes;
  entry.backing = segment.backing;
  entry.file = segment.file;
  entry.address = 0;
  entry.prepared = {};
  entry.available = {};
  entry.shared = false;
  entry.ready = false;
  entry.broadcast = segment.broadcast;
  entry.unicast = segment.unicast;
  entry.gpu = {};
  for (auto& word : entry.opened) word = 0;
  entry.connections = 0;
  entry.events_written = 0;
  ++entry.generation;
  return entry;
}

void check_multicast(const Library& mine) {
  require(mine.settings()->multicast_groups > 0, SCI_ERR_FLAG_NOT_IMPLEMENTED);
}

void check_handle(const void* handle) { require(handle != nullptr, SCI_ERR_ILLEGAL_PARAMETER); }

// Memory of the program's behind an empty segment.
void check_attach(const sci_local_segment& segment, void* address, std::size_t bytes,
                  std::size_t page) {
  require(segment.owner && segment.backing == Backing::kNone, SCI_ERR_ILLEGAL_OPERATION);
  require(address != nullptr && whole_pages(reinterpret_cast<std::size_t>(address), page),
          SCI_ERR_ILLEGAL_ADDRESS);
  require(bytes > 0 && whole_pages(bytes, page), SCI_ERR_SIZE_ALIGNMENT);
  require(bytes <= segment.bytes, SCI_ERR_OUT_OF_RANGE);
}

void attach_host(sci_local_segment& segment, void* address, std::size_t bytes) {
  check_attach(segment, address, bytes, kPage);
  // As locking the pages would find out.
  std::vector<unsigned char> resident(bytes / kPage);
  require(mincore(address, bytes, resident.data()) == 0, SCI_ERR_ILLEGAL_ADDRESS);
  segment.backing = Backing::kUser;
  segment.memory = static_cast<std::byte*>(address);
  const Fabric::Lock lock(library().fabric());
  segment.entry->backing = Backing::kUser;
  segment.entry->address = reinterpret_cast<std::uint64_t>(address);
}

void attach_gpu(sci_local_segment& segment, void* address, std::size_t bytes) {
  check_attach(segment, address, bytes, kGpuPage);
  GpuShare share;
  segment.gpu = library().gpu_memory().attach(address, bytes, share);
  segment.backing = Backing::kGpu;
  segment.memory = static_cast<std::byte*>(address);
  const Fabric::Lock lock(library().fabric());
  segment.entry->backing = Backing::kGpu;
  segment.entry->gpu = share;
}

// Waits until no transfer of another process touches a segment whose connections were cut.
void wait_for_copies(Library& mine, const SegmentEntry& segment, std::uint64_t generation) {
  State& state = mine.fabric().state();
  const auto index = static_cast<std::uint32_t>(&segment - state.segments.data());
  for (std::size_t i = 0; i < kMaxConnections && i < state.connections_end; ++i) {
    ConnectionEntry& connection = state.connections[i];
    if (!connection.used || connection.segment != index || connection.generation != generation) {
      continue;
    }
    // A process that ended in the middle is noticed by the event thread.
    while (connection.used && connection.copying != 0) usleep(50);
  }
}

}  // namespace

Looked sci_local_segment::look(Library& mine) {
  if (callback == nullptr) return Looked::kNothing;
  SegmentEvent event;
  {
    const Fabric::Lock lock(mine.fabric());
    if (entry->generation != generation || events_read == entry->events_written) {
      return Looked::kNothing;
    }
    if (entry->events_written - events_read > kSegmentEvents) {
      events_read = entry->events_written - kSegmentEvents;
    }
    event = entry->events[events_read++ % kSegmentEvents];
  }
  return called(callback(arg, this, static_cast<sci_segment_cb_reason_t>(event.reason), event.node,
                         event.adapter, SCI_ERR_OK));
}

Looked sci_remote_segment::look(Library& mine) {
  std::optional<sci_segment_cb_reason_t> event;
  if (!lost && !group && (connection->cut || entry->generation != generation)) {
    lost = true;
    event = SCI_CB_LOST;
  }
  const auto settings = mine.settings();
  const bool up =
      settings->link_up(mine.host(), adapter) && (group || settings->link_up(host, adapter));
  if (!lost && up != operational) {
    operational = up;
    event = up ? SCI_CB_OPERATIONAL : SCI_CB_NOT_OPERATIONAL;
  }
  if (event) {
    // While the other side is unreachable, a map reads as ones and stores are lost.
    const bool dead = lost || !operational;
    {
      const std::lock_guard lock(maps_lock);
      for (sci_map* map : maps) {
        const std::lock_guard map_lock(map->lock);
        if (map->dead == dead) continue;
        map->dead = dead;
        if (group) continue;  // reading it says nothing in any case
        std::byte* const place = map->target != nullptr ? map->target : map->pointer;
        if (dead) {
          mmap(place, rounded(map->bytes), PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
          std::memset(place, 0xff, rounded(map->bytes));
        } else {
          mmap(place, rounded(map->bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
               static_cast<off_t>(map->offset));
        }
      }
    }
    // Who hears of it sees it so.
    {
      const std::lock_guard lock(events_lock);
      events.push_back(*event);
    }
    mine.wake_events();
  }
  if (callback == nullptr) return Looked::kNothing;
  sci_segment_cb_reason_t reason;
  {
    const std::lock_guard lock(events_lock);
    if (events.empty()) return Looked::kNothing;
    reason = events.front();
    events.pop_front();
  }
  return called(callback(arg, this, reason, SCI_ERR_OK));
}

void SCICreateSegment(sci_desc_t sd, sci_local_segment_t* segment, unsigned int id, size_t size,
                      sci_cb_local_segment_t callback, void* arg, unsigned int flags,
                      sci_error_t* error) {
  call(error, [&] {
    require(sd != nullptr && segment != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    Library& mine = library();
    require(size > 0, SCI_ERR_SIZE_ALIGNMENT);
    const bool calls = (flags & SCI_FLAG_USE_CALLBACK) != 0;
    require(!calls || callback != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    auto made = std::make_unique<sci_local_segment>(*sd);
    made->id = id;
    made->bytes = size;
    made->private_ = (flags & SCI_FLAG_PRIVATE) != 0;
    made->broadcast = (flags & SCI_FLAG_BROADCAST) != 0;
    made->unicast = !made->broadcast || (flags & SCI_FLAG_ALLOW_UNICAST) != 0;
    if (made->broadcast) {
      check_multicast(mine);
      require((flags & SCI_FLAG_EMPTY) == 0, SCI_ERR_FLAG_NOT_IMPLEMENTED);
    }
    made->callback = calls ? callback : nullptr;
    made->arg = arg;
    if ((flags & SCI_FLAG_EMPTY) == 0) {
      const std::size_t most = mine.settings()->max_contiguous;
      require(most == 0 || size <= most, SCI_ERR_NOSPC);
      made->backing = Backing::kLibrary;
      made->file = memfd_create("software-sisci", MFD_CLOEXEC);
      require(made->file >= 0, SCI_ERR_NOSPC);
      if (ftruncate(made->file, static_cast<off_t>(rounded(size))) != 0 ||
          fallocate(made->file, 0, 0, static_cast<off_t>(rounded(size))) != 0) {
        close(made->file);
        throw Failure{SCI_ERR_NOSPC};
      }
      try {
        made->memory = map_file(made->file, rounded(size));
      } catch (...) {
        close(made->file);
        throw;
      }
    }
    try {
      const Fabric::Lock lock(mine.fabric());
      if ((flags & SCI_FLAG_AUTO_ID) != 0) {
        made->id = 1;
        while (mine.fabric().find_segment(mine.host(), made->id) != nullptr) ++made->id;
      }
      require(mine.fabric().find_segment(mine.host(), made->id) == nullptr, SCI_ERR_SEGMENTID_USED);
      require(!made->broadcast || made->id < mine.settings()->multicast_groups,
              SCI_ERR_ILLEGAL_PARAMETER);
      made->entry = &take_entry(mine, *made);
      made->generation = made->entry->generation;
    } catch (...) {
      close_memory(made->file, made->memory, size);
      throw;
    }
    *segment = made.release();
    mine.watch(**segment);
  });
}
SISCI_EXPORT(SCICreateSegment);

void SCIPrepareSegment(sci_local_segment_t segment, unsigned int adapter, unsigned int /*flags*/,
                       sci_error_t* error) {
  call(error, [&] {
    check_handle(segment);
    library().check_adapter(adapter);
    require(segment->backing != Backing::kNone, SCI_ERR_ILLEGAL_OPERATION);
    const Fabric::Lock lock(library().fabric());
    segment->entry->prepared[adapter] = true;
  });
}
SISCI_EXPORT(SCIPrepareSegment);

void SCISetSegmentAvailable(sci_local_segment_t segment, unsigned int adapter,
                            unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    check_handle(segment);
    Library& mine = library();
    mine.check_adapter(adapter);
    require(!segment->private_, SCI_ERR_ILLEGAL_OPERATION);
    {
      const Fabric::Lock lock(mine.fabric());
      require(segment->entry->prepared[adapter], SCI_ERR_SEGMENT_NOT_PREPARED);
      segment->entry->available[adapter] = true;
      segment->entry->ready = true;
    }
    mine.fabric().announce();
    if (segment->backing == Backing::kGpu) mine.gpu_memory().settle(*segment->entry);
  });
}
SISCI_EXPORT(SCISetSegmentAvailable);

void SCISetSegmentUnavailable(sci_local_segment_t segment, unsigned int adapter, unsigned int flags,
                              sci_error_t* error) {
  call(error, [&] {
    check_handle(segment);
    Library& mine = library();
    mine.check_adapter(adapter);
    const bool force = (flags & SCI_FLAG_FORCE_DISCONNECT) != 0;
    {
      const Fabric::Lock lock(mine.fabric());
      require(segment->entry->available[adapter] || force, SCI_ERR_ILLEGAL_OPERATION);
      segment->entry->available[adapter] = false;
      if (force) mine.fabric().cut_connections(*segment->entry);
    }
    if (force) wait_for_copies(mine, *segment->entry, segment->generation);
    mine.fabric().announce();
  });
}
SISCI_EXPORT(SCISetSegmentUnavailable);

void SCIRemoveSegment(sci_local_segment_t segment, unsigned int flags, sci_error_t* error) {
  call(error, [&] {
    check_handle(segment);
    Library& mine = library();
    require(segment->children == 0, SCI_ERR_BUSY);
    if (segment->owner) {
      const Fabric::Lock lock(mine.fabric());
      const bool force = !mine.settings()->strict || (flags & SCI_FLAG_FORCE_REMOVE) != 0;
      require(segment->entry->connections == 0 || force, SCI_ERR_BUSY);
      mine.fabric().free_segment(*segment->entry);
    }
    if (segment->owner) wait_for_copies(mine, *segment->entry, segment->generation);
    mine.fabric().announce();
    mine.forget(*segment);
    if (segment->backing == Backing::kLibrary) {
      close_memory(segment->file, segment->memory, segment->bytes);
    }
    delete segment;
  });
}
SISCI_EXPORT(SCIRemoveSegment);

void SCIRegisterSegmentMemory(void* address, size_t size, sci_local_segment_t segment,
                              unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    check_handle(segment);
    require(library().settings()->iommu != Iommu::kAbsent, SCI_ERR_NOT_SUPPORTED);
    attach_host(*segment, address, size);
  });
}
SISCI_EXPORT(SCIRegisterSegmentMemory);

void SCIAttachPhysicalMemory(sci_ioaddr_t /*ioaddress*/, void* address, unsigned int /*busNo*/,
                             size_t size, sci_local_segment_t segment, unsigned int flags,
                             sci_error_t* error) {
  call(error, [&] {
    check_handle(segment);
    const auto settings = library().settings();
    require((flags & SCI_FLAG_CUDA_BUFFER) != 0, SCI_ERR_ACCESS);
    require(settings->gpu_memory, SCI_ERR_HW_NOSPC);
    require(settings->iommu != Iommu::kAbsent, SCI_ERR_NOT_SUPPORTED);
    attach_gpu(*segment, address, size);
  });
}
SISCI_EXPORT(SCIAttachPhysicalMemory);

void SCIShareSegment(sci_local_segment_t segment, unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    check_handle(segment);
    require(segment->backing == Backing::kLibrary, SCI_ERR_ILLEGAL_OPERATION);
    const Fabric::Lock lock(library().fabric());
    segment->entry->shared = true;
  });
}
SISCI_EXPORT(SCIShareSegment);

void SCIAttachLocalSegment(sci_desc_t sd, sci_local_segment_t* segment, unsigned int id,
                           size_t* size, sci_cb_local_segment_t callback, void* arg,
                           unsigned int flags, sci_error_t* error) {
  call(error, [&] {
    require(sd != nullptr && segment != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    Library& mine = library();
    auto made = std::make_unique<sci_local_segment>(*sd);
    made->owner = false;
    const bool calls = (flags & SCI_FLAG_USE_CALLBACK) != 0;
    require(!calls || callback != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    made->callback = calls ? callback : nullptr;
    made->arg = arg;
    {
      const Fabric::Lock lock(mine.fabric());
      SegmentEntry* entry = mine.fabric().find_segment(mine.host(), id);
      require(entry != nullptr, SCI_ERR_NO_SUCH_SEGMENT);
      require(entry->shared, SCI_ERR_ACCESS);
      made->entry = entry;
      made->generation = entry->generation;
      made->id = id;
      made->bytes = entry->bytes;
      made->backing = Backing::kLibrary;
      made->events_read = entry->events_written;
      made->file = open_file_of(mine.fabric().state().processes[entry->process].pid, entry->file);
      require(made->file >= 0, SCI_ERR_ACCESS);
    }
    made->memory = map_file(made->file, rounded(made->bytes));
    if (size != nullptr) *size = made->bytes;
    *segment = made.release();
    mine.watch(**segment);
  });
}
SISCI_EXPORT(SCIAttachLocalSegment);

sci_segment_cb_reason_t SCIWaitForLocalSegmentEvent(sci_local_segment_t segment,
                                                    unsigned int* nodeId, unsigned int* adapter,
                                                    unsigned int timeout, unsigned int /*flags*/,
                                                    sci_error_t* error) {
  return call(error, [&] {
    check_handle(segment);
    require(segment->callback == nullptr, SCI_ERR_ILLEGAL_OPERATION);
    Library& mine = library();
    SegmentEvent event;
    const bool came = wait_for(mine, timeout, [&] {
      const Fabric::Lock lock(mine.fabric());
      require(segment->entry->generation == segment->generation, SCI_ERR_CANCELLED);
      if (segment->events_read == segment->entry->events_written) return false;
      if (segment->entry->events_written - segment->events_read > kSegmentEvents) {
        segment->events_read = segment->entry->events_written - kSegmentEvents;
      }
      event = segment->entry->events[segment->events_read++ % kSegmentEvents];
      return true;
    });
    require(came, SCI_ERR_TIMEOUT);
    if (nodeId != nullptr) *nodeId = event.node;
    if (adapter != nullptr) *adapter = event.adapter;
    return static_cast<sci_segment_cb_reason_t>(event.reason);
  });
}
SISCI_EXPORT(SCIWaitForLocalSegmentEvent);

unsigned int SCIGetLocalSegmentId(sci_local_segment_t segment) { return segment->id; }
SISCI_EXPORT(SCIGetLocalSegmentId);

size_t SCIGetLocalSegmentSize(sci_local_segment_t segment) { return segment->bytes; }
SISCI_EXPORT(SCIGetLocalSegmentSize);

// ---- remote segments -----------------------------------------------------------------------

namespace {

ConnectionEntry& take_connection(State& state) {
  for (std::size_t i = 0; i < state.connections_end; ++i) {
    if (!state.connections[i].used) return state.connections[i];
  }
  require(state.connections_end < kMaxConnections, SCI_ERR_NOSPC);
  return state.connections[state.connections_end++];
}

void disconnect(Library& mine, sci_remote_segment& segment) {
  if (segment.group) return;
  {
    const Fabric::Lock lock(mine.fabric());
    mine.fabric().free_connection(*segment.connection);
  }
  mine.fabric().announce();
  close_memory(segment.file, segment.memory, segment.bytes);
}

// Joins the group of a broadcast segment, which one that is available makes.
void join(Library& mine, sci_remote_segment& segment) {
  mine.check_adapter(segment.adapter);
  check_multicast(mine);
  require(mine.settings()->link_up(mine.host(), segment.adapter), SCI_ERR_NO_LINK_ACCESS);
  segment.group = std::make_unique<Group>(segment.id, segment.adapter);
  segment.backing = Backing::kLibrary;
  segment.bytes = segment.group->bytes(mine);
  require(segment.bytes > 0, SCI_ERR_NO_SUCH_SEGMENT);
}

}  // namespace

void SCIConnectSegment(sci_desc_t sd, sci_remote_segment_t* segment, unsigned int nodeId,
                       unsigned int id, unsigned int adapter, sci_cb_remote_segment_t callback,
                       void* arg, unsigned int /*timeout*/, unsigned int flags,
                       sci_error_t* error) {
  call(error, [&] {
    require(sd != nullptr && segment != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    Library& mine = library();
    const bool calls = (flags & SCI_FLAG_USE_CALLBACK) != 0;
    require(!calls || callback != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    auto made = std::make_unique<sci_remote_segment>(*sd);
    made->node = nodeId;
    made->id = id;
    made->adapter = adapter;
    made->callback = calls ? callback : nullptr;
    made->arg = arg;
    const bool broadcast = (flags & SCI_FLAG_BROADCAST) != 0;
    require(broadcast == (nodeId == DIS_BROADCAST_NODEID_GROUP_ALL), SCI_ERR_ILLEGAL_NODEID);
    if (broadcast) {
      join(mine, *made);
      *segment = made.release();
      mine.watch(**segment);
      return;
    }
    made->host = mine.reach(adapter, nodeId);
    const unsigned own_node = mine.settings()->node_id(mine.host(), adapter);
    GpuShare share;
    {
      const Fabric::Lock lock(mine.fabric());
      State& state = mine.fabric().state();
      SegmentEntry* entry = mine.fabric().find_segment(made->host, id);
      require(entry != nullptr && entry->available[adapter] && entry->unicast,
              SCI_ERR_NO_SUCH_SEGMENT);
      made->entry = entry;
      made->generation = entry->generation;
      made->bytes = entry->bytes;
      made->backing = entry->backing;
      made->address = entry->address;
      made->pid = state.processes[entry->process].pid;
      if (entry->backing == Backing::kLibrary) {
        made->file = open_file_of(made->pid, entry->file);
        require(made->file >= 0, SCI_ERR_CONNECTION_REFUSED);
      }
      try {
        if (made->file >= 0) made->memory = map_file(made->file, rounded(made->bytes));
        ConnectionEntry& connection = take_connection(state);
        connection.process = mine.fabric().process();
        connection.cut = false;
        connection.copying = 0;
        connection.segment = static_cast<std::uint32_t>(entry - state.segments.data());
        connection.generation = entry->generation;
        connection.node = own_node;
        connection.adapter = adapter;
        connection.used = true;
        made->connection = &connection;
      } catch (...) {
        close_memory(made->file, made->memory, made->bytes);
        throw;
      }
      ++entry->connections;
      share = entry->gpu;
      mine.fabric().add_event(*entry, {SCI_CB_CONNECT, own_node, adapter});
    }
    mine.fabric().announce();
    if (made->backing == Backing::kGpu) {
      try {
        made->gpu = mine.gpu_memory().connect(made->connection->segment, made->generation,
                                              made->pid, share);
      } catch (...) {
        disconnect(mine, *made);
        throw;
      }
    }
    *segment = made.release();
    mine.watch(**segment);
  });
}
SISCI_EXPORT(SCIConnectSegment);

void SCIDisconnectSegment(sci_remote_segment_t segment, unsigned int /*flags*/,
                          sci_error_t* error) {
  call(error, [&] {
    check_handle(segment);
    require(segment->children == 0, SCI_ERR_BUSY);
    Library& mine = library();
    mine.forget(*segment);
    disconnect(mine, *segment);
    delete segment;
  });
}
SISCI_EXPORT(SCIDisconnectSegment);

sci_segment_cb_reason_t SCIWaitForRemoteSegmentEvent(sci_remote_segment_t segment,
                                                     sci_error_t* status, unsigned int timeout,
                                                     unsigned int /*flags*/, sci_error_t* error) {
  return call(error, [&] {
    check_handle(segment);
    require(segment->callback == nullptr, SCI_ERR_ILLEGAL_OPERATION);
    sci_segment_cb_reason_t reason{};
    const bool came = wait_for(library(), timeout, [&] {
      const std::lock_guard lock(segment->events_lock);
      if (segment->events.empty()) return false;
      reason = segment->events.front();
      segment->events.pop_front();
      return true;
    });
    require(came, SCI_ERR_TIMEOUT);
    if (status != nullptr) *status = SCI_ERR_OK;
    return reason;
  });
}
SISCI_EXPORT(SCIWaitForRemoteSegmentEvent);

size_t SCIGetRemoteSegmentSize(sci_remote_segment_t segment) { return segment->bytes; }
SISCI_EXPORT(SCIGetRemoteSegmentSize);

unsigned int SCIGetRemoteSegmentId(sci_remote_segment_t segment) { return segment->id; }
SISCI_EXPORT(SCIGetRemoteSegmentId);

unsigned int SCIGetRemoteSegmentNodeId(sci_remote_segment_t segment) { return segment->node; }
SISCI_EXPORT(SCIGetRemoteSegmentNodeId);
