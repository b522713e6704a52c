// Mapped segments: what the processor reads and stores itself.
//
// A map is the segment's memory. With delayed stores, or of a broadcast segment, it is a buffer of
// its own, and what the program stored there is carried on by a flush, or by the event thread a
// little later: to one node in words of eight bytes, in an order that the faults of the settings
// decide; to a group in blocks no larger than what changed, since other nodes store beside it.
#include <immintrin.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "library.h"

using namespace software_sisci;

namespace software_sisci {
namespace {

constexpr auto kTornTime = std::chrono::microseconds(300);

std::size_t words_of(const sci_map& map) { return map.sent.size() / kWord; }

// Data stored since the last flush, which is then marked as sent.
std::vector<Block> take_stored(sci_map& map) {
  std::vector<Block> blocks = blocks_that_differ(map.pointer, map.sent.data(), words_of(map));
  // The program may continue to store, so a snapshot is sent.
  for (const Block& block : blocks) {
    std::memcpy(map.sent.data() + block.offset, map.pointer + block.offset, block.bytes);
  }
  return blocks;
}

// Members that came later get what was stored before: that it is stored again is not seen here.
bool flush_to_group(Library& mine, sci_map& map) {
  const std::vector<Block> stored = take_stored(map);
  std::vector<Block> all;
  map.told = map.remote->group->for_each(mine, [&](const Group::Member& member) {
    const bool new_here = member.number > map.told;
    if (new_here && all.empty()) {
      all = blocks_that_differ(map.sent.data(), nullptr, words_of(map));
    }
    for (const Block& block : new_here ? all : stored) {
      if (map.offset + block.offset + block.bytes > rounded(member.bytes)) break;
      store_block(member.memory + map.offset + block.offset, map.sent.data() + block.offset,
                  block.bytes);
    }
  });
  return !stored.empty();
}

// A word of the other side, whole.
bool flush_to_target(Library& mine, sci_map& map, bool asked) {
  const auto settings = mine.settings();
  const Clock::time_point now = Clock::now();
  if (!asked && now < map.flushed + std::chrono::milliseconds(settings->store_delay_ms)) {
    return false;
  }
  map.flushed = now;
  std::vector<std::size_t> words;
  for (const Block& block : take_stored(map)) words.push_back(block.offset / kWord * kWord);
  if (words.empty()) return false;
  const std::uint64_t number = asked ? ++map.flushes : 0;
  const auto hit = [&](std::uint64_t every) { return asked && every != 0 && number % every == 0; };
  const auto store = [&](std::size_t word) {
    store_block(map.target + word, map.sent.data() + word, kWord);
  };
  if (hit(settings->lost_flush)) {
    map.store_lost = true;
    words.erase(words.begin());
    if (words.empty()) return true;
  }
  if (hit(settings->torn_flush)) {
    store(words.back());
    usleep(static_cast<unsigned>(kTornTime.count()));
  }
  for (const std::size_t word : words) store(word);
  return true;
}

// With the lock of the map.
bool flush_locked(Library& mine, sci_map& map, bool asked) {
  if (map.sent.empty()) return false;
  if (map.dead) {
    // Data stored meanwhile is lost. A map of one node has this property by itself.
    if (map.remote->group) (void)take_stored(map);
    return false;
  }
  return map.remote->group ? flush_to_group(mine, map) : flush_to_target(mine, map, asked);
}

}  // namespace

bool flush_map(Library& mine, sci_map& map, bool asked) {
  const std::lock_guard lock(map.lock);
  return flush_locked(mine, map, asked);
}

}  // namespace software_sisci

namespace {

void check_range(std::size_t offset, std::size_t bytes, std::size_t whole) {
  require(bytes > 0, SCI_ERR_SIZE_ALIGNMENT);
  require(offset % kPage == 0, SCI_ERR_OFFSET_ALIGNMENT);
  require(offset <= whole && bytes <= whole - offset, SCI_ERR_OUT_OF_RANGE);
}

std::byte* map_at(int file, std::size_t offset, std::size_t bytes, void* address, bool fixed,
                  int protection) {
  void* mapped = mmap(fixed ? address : nullptr, rounded(bytes), protection,
                      MAP_SHARED | (fixed ? MAP_FIXED : 0), file, static_cast<off_t>(offset));
  require(mapped != MAP_FAILED, SCI_ERR_NOSPC);
  return static_cast<std::byte*>(mapped);
}

sci_map& checked(sci_map_t map) {
  require(map != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
  return *map;
}

}  // namespace

void* SCIMapLocalSegment(sci_local_segment_t segment, sci_map_t* map, size_t offset, size_t size,
                         void* address, unsigned int flags, sci_error_t* error) {
  return call(error, [&]() -> void* {
    require(segment != nullptr && map != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    check_range(offset, size, segment->bytes);
    require(segment->backing != Backing::kNone, SCI_ERR_ILLEGAL_OPERATION);
    auto made = std::make_unique<sci_map>(*segment);
    made->local = segment;
    made->offset = offset;
    made->bytes = size;
    made->fixed = (flags & SCI_FLAG_FIXED_MAP_ADDR) != 0;
    if (segment->backing == Backing::kLibrary) {
      made->pointer =
          map_at(segment->file, offset, size, address, made->fixed,
                 (flags & SCI_FLAG_READONLY_MAP) != 0 ? PROT_READ : PROT_READ | PROT_WRITE);
    } else {
      made->pointer = segment->memory + offset;
    }
    *map = made.release();
    return (*map)->pointer;
  });
}
SISCI_EXPORT(SCIMapLocalSegment);

volatile void* SCIMapRemoteSegment(sci_remote_segment_t segment, sci_map_t* map, size_t offset,
                                   size_t size, void* address, unsigned int flags,
                                   sci_error_t* error) {
  return call(
      error, [&]() -> volatile void* {
        require(segment != nullptr && map != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
        check_range(offset, size, segment->bytes);
        Library& mine = library();
        require(!segment->lost, SCI_ERR_NOT_CONNECTED);
        // Memory of another process is reached by transfers alone.
        require(segment->backing == Backing::kLibrary, SCI_ERR_NOT_SUPPORTED);
        const auto settings = mine.settings();
        const std::size_t taken = mine.mapped.fetch_add(size) + size;
        auto made = std::make_unique<sci_map>(*segment);
        try {
          require(settings->max_mapped == 0 || taken <= settings->max_mapped, SCI_ERR_HW_NOSPC);
          made->remote = segment;
          made->offset = offset;
          made->bytes = size;
          made->fixed = (flags & SCI_FLAG_FIXED_MAP_ADDR) != 0;
          const int protection =
              (flags & SCI_FLAG_READONLY_MAP) != 0 ? PROT_READ : PROT_READ | PROT_WRITE;
          if (segment->group || settings->delayed_stores) {
            require(segment->group || !made->fixed, SCI_ERR_FLAG_NOT_IMPLEMENTED);
            if (!segment->group) {
              made->target = map_at(segment->file, offset, size, nullptr, false, protection);
            }
            void* own = mmap(made->fixed ? address : nullptr, rounded(size), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | (made->fixed ? MAP_FIXED : 0), -1, 0);
            require(own != MAP_FAILED, SCI_ERR_NOSPC);
            made->pointer = static_cast<std::byte*>(own);
            made->sent.resize((size + kWord - 1) / kWord * kWord);
            if (made->target != nullptr) {
              std::memcpy(made->sent.data(), made->target, made->sent.size());
              std::memcpy(made->pointer, made->sent.data(), made->sent.size());
            }
            mine.map_made(*made);
          } else {
            made->pointer = map_at(segment->file, offset, size, address, made->fixed, protection);
          }
        } catch (...) {
          mine.mapped -= size;
          throw;
        }
        {
          const std::lock_guard lock(segment->maps_lock);
          segment->maps.insert(made.get());
        }
        *map = made.release();
        return (*map)->pointer;
      });
}
SISCI_EXPORT(SCIMapRemoteSegment);

void SCIUnmapSegment(sci_map_t map, unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    sci_map& gone = checked(map);
    Library& mine = library();
    require(gone.sequences.empty() || !mine.settings()->strict, SCI_ERR_BUSY);
    if (gone.remote != nullptr) {
      // First of all: the event thread writes into the maps of a segment that it finds lost.
      {
        const std::lock_guard lock(gone.remote->maps_lock);
        gone.remote->maps.erase(&gone);
      }
      if (!gone.sent.empty()) {
        flush_map(mine, gone, true);
        mine.map_gone(gone);
      }
      if (gone.target != nullptr) munmap(gone.target, rounded(gone.bytes));
      mine.mapped -= gone.bytes;
      munmap(gone.pointer, rounded(gone.bytes));
    } else if (gone.local->backing == Backing::kLibrary) {
      munmap(gone.pointer, rounded(gone.bytes));
    }
    for (sci_sequence* sequence : gone.sequences) sequence->map = nullptr;
    delete map;
  });
}
SISCI_EXPORT(SCIUnmapSegment);

void* SCIGetMapPointer(sci_map_t map) { return map->pointer; }
SISCI_EXPORT(SCIGetMapPointer);

sci_ioaddr_t SCIGetMapPhysAddr(sci_map_t map) {
  return reinterpret_cast<sci_ioaddr_t>(map->pointer);
}
SISCI_EXPORT(SCIGetMapPhysAddr);

// ---- sequences -----------------------------------------------------------------------------

namespace {

// The map of a sequence. It may be unmapped before the sequence is removed.
sci_map& map_of(sci_sequence_t sequence) {
  require(sequence != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
  require(sequence->map != nullptr, SCI_ERR_ILLEGAL_OPERATION);
  return *sequence->map;
}

// A store that was lost may be made again; a link that was down has to come back first.
sci_sequence_status_t check(sci_sequence_t sequence) {
  sci_map& map = map_of(sequence);
  if (map.remote == nullptr) return SCI_SEQ_OK;
  flush_map(library(), map, true);
  if (map.remote->lost || !map.remote->operational) {
    sequence->broken = true;
    return SCI_SEQ_NOT_RETRIABLE;
  }
  const std::lock_guard lock(map.lock);
  if (sequence->broken || map.store_lost) {
    sequence->broken = false;
    map.store_lost = false;
    // The stored data is sent again.
    if (map.target != nullptr) std::memcpy(map.sent.data(), map.target, map.sent.size());
    return SCI_SEQ_RETRIABLE;
  }
  return SCI_SEQ_OK;
}

}  // namespace

void SCICreateMapSequence(sci_map_t map, sci_sequence_t* sequence, unsigned int /*flags*/,
                          sci_error_t* error) {
  call(error, [&] {
    require(sequence != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    *sequence = new sci_sequence(checked(map));
    const std::lock_guard lock(map->lock);
    map->sequences.insert(*sequence);
  });
}
SISCI_EXPORT(SCICreateMapSequence);

void SCIRemoveSequence(sci_sequence_t sequence, unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(sequence != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    if (sequence->map != nullptr) {
      const std::lock_guard lock(sequence->map->lock);
      sequence->map->sequences.erase(sequence);
    }
    delete sequence;
  });
}
SISCI_EXPORT(SCIRemoveSequence);

sci_sequence_status_t SCIStartSequence(sci_sequence_t sequence, unsigned int /*flags*/,
                                       sci_error_t* error) {
  return call(error, [&] {
    const sci_remote_segment* remote = map_of(sequence).remote;
    const bool reachable = remote == nullptr || (!remote->lost && remote->operational);
    sequence->broken = !reachable;
    return reachable ? SCI_SEQ_OK : SCI_SEQ_NOT_RETRIABLE;
  });
}
SISCI_EXPORT(SCIStartSequence);

sci_sequence_status_t SCICheckSequence(sci_sequence_t sequence, unsigned int /*flags*/,
                                       sci_error_t* error) {
  return call(error, [&] { return check(sequence); });
}
SISCI_EXPORT(SCICheckSequence);

void SCIStoreBarrier(sci_sequence_t sequence, unsigned int /*flags*/) {
  _mm_sfence();
  if (sequence != nullptr && sequence->map != nullptr) {
    flush_map(*Library::get(), *sequence->map, true);
  }
}
SISCI_EXPORT(SCIStoreBarrier);

void SCIFlush(sci_sequence_t sequence, unsigned int flags) { SCIStoreBarrier(sequence, flags); }
SISCI_EXPORT(SCIFlush);

namespace {

std::atomic<unsigned> copy_function{0};

// After what was stored before. Other than a store, it is seen when it changes nothing.
void copy_to_group(Library& mine, sci_map& map, const std::byte* data, std::size_t offset,
                   std::size_t bytes) {
  const std::lock_guard lock(map.lock);
  if (map.dead) return;
  (void)flush_locked(mine, map, false);
  std::memcpy(map.pointer + offset, data, bytes);
  std::memcpy(map.sent.data() + offset, data, bytes);
  map.remote->group->store(mine, map.offset + offset, data, bytes);
}

}  // namespace

void SCIMemCpy(sci_sequence_t sequence, void* memory, sci_map_t map, size_t offset, size_t size,
               unsigned int flags, sci_error_t* error) {
  call(error, [&] {
    sci_map& remote = checked(map);
    require(memory != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    require(offset <= remote.bytes && size <= remote.bytes - offset, SCI_ERR_OUT_OF_RANGE);
    if ((flags & SCI_FLAG_BLOCK_READ) != 0) {
      const std::byte* from = remote.target != nullptr ? remote.target : remote.pointer;
      std::memcpy(memory, from + offset, size);
    } else if (remote.remote != nullptr && remote.remote->group) {
      copy_to_group(library(), remote, static_cast<const std::byte*>(memory), offset, size);
    } else {
      std::memcpy(remote.pointer + offset, memory, size);
    }
    if (sequence != nullptr && (flags & SCI_FLAG_ERROR_CHECK) != 0) {
      require(check(sequence) == SCI_SEQ_OK, SCI_ERR_TRANSFER_FAILED);
    }
  });
}
SISCI_EXPORT(SCIMemCpy);

void SCIMemWrite(void* memory, volatile void* remote, size_t size, unsigned int /*flags*/,
                 sci_error_t* error) {
  call(error, [&] {
    require(memory != nullptr && remote != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    std::memcpy(const_cast<void*>(remote), memory, size);
  });
}
SISCI_EXPORT(SCIMemWrite);

void SCICacheSync(sci_map_t map, void* /*address*/, size_t /*length*/, unsigned int /*flags*/,
                  sci_error_t* error) {
  call(error, [&] { (void)checked(map); });
}
SISCI_EXPORT(SCICacheSync);

// The best of them depends on the adapter; here all copy in the same way.
void SetSciMemCopyFunction(unsigned int function) { copy_function = function; }
SISCI_EXPORT(SetSciMemCopyFunction);

unsigned int GetSciMemCopyFunction() { return copy_function; }
SISCI_EXPORT(GetSciMemCopyFunction);
