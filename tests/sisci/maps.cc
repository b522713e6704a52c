// Mapped segments: what the processor reads and stores itself.
//
// A map is the segment's memory. With delayed stores it is a buffer of its own, and what the
// program stored there is carried on by a flush, or by the event thread a little later: in words of
// eight bytes, in an order that the faults of the settings decide.
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

constexpr std::size_t kWord = 8;
constexpr auto kTornTime = std::chrono::microseconds(300);

void store_word(std::byte* target, const std::byte* source) {
  std::uint64_t word = 0;
  std::memcpy(&word, source, kWord);
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(target)).store(word);
}

}  // namespace

void flush_map(Library& mine, sci_map& map, bool asked) {
  const std::lock_guard lock(map.lock);
  if (map.target == nullptr || map.dead) return;
  const auto settings = mine.settings();
  std::vector<std::size_t> changed;
  for (std::size_t line = 0; line < map.bytes; line += 64) {
    const std::size_t length = std::min<std::size_t>(64, map.bytes - line);
    if (std::memcmp(map.pointer + line, map.sent.data() + line, length) == 0) continue;
    for (std::size_t word = line; word + kWord <= line + length; word += kWord) {
      if (std::memcmp(map.pointer + word, map.sent.data() + word, kWord) != 0) {
        changed.push_back(word);
      }
    }
  }
  if (changed.empty()) return;
  // The program may go on storing: what was seen is what is sent.
  for (const std::size_t word : changed) {
    std::memcpy(map.sent.data() + word, map.pointer + word, kWord);
  }
  const std::uint64_t number = asked ? ++map.flushes : 0;
  const auto hit = [&](std::uint64_t every) { return asked && every != 0 && number % every == 0; };
  if (hit(settings->lost_flush)) {
    map.store_lost = true;
    changed.erase(changed.begin());
    if (changed.empty()) return;
  }
  if (hit(settings->torn_flush)) {
    store_word(map.target + changed.back(), map.sent.data() + changed.back());
    usleep(static_cast<unsigned>(kTornTime.count()));
  }
  for (const std::size_t word : changed) store_word(map.target + word, map.sent.data() + word);
}

}  // namespace software_sisci

namespace {

std::size_t rounded(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

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
          if (settings->delayed_stores) {
            require(!made->fixed, SCI_ERR_FLAG_NOT_IMPLEMENTED);
            made->target = map_at(segment->file, offset, size, nullptr, false, protection);
            void* own = mmap(nullptr, rounded(size), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            require(own != MAP_FAILED, SCI_ERR_NOSPC);
            made->pointer = static_cast<std::byte*>(own);
            made->sent.resize(size);
            std::memcpy(made->sent.data(), made->target, size);
            std::memcpy(made->pointer, made->sent.data(), size);
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
    require(gone.children == 0, SCI_ERR_BUSY);
    Library& mine = library();
    if (gone.remote != nullptr) {
      // First of all: the event thread writes into the maps of a segment that it finds lost.
      {
        const std::lock_guard lock(gone.remote->maps_lock);
        gone.remote->maps.erase(&gone);
      }
      if (gone.target != nullptr) {
        flush_map(mine, gone, true);
        mine.map_gone(gone);
        munmap(gone.target, rounded(gone.bytes));
      }
      mine.mapped -= gone.bytes;
      munmap(gone.pointer, rounded(gone.bytes));
    } else if (gone.local->backing == Backing::kLibrary) {
      munmap(gone.pointer, rounded(gone.bytes));
    }
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

// A store that was lost may be made again; a link that was down has to come back first.
sci_sequence_status_t check(sci_sequence& sequence) {
  sci_map& map = sequence.map;
  if (map.remote == nullptr) return SCI_SEQ_OK;
  flush_map(library(), map, true);
  if (map.remote->lost || !map.remote->operational) {
    sequence.broken = true;
    return SCI_SEQ_NOT_RETRIABLE;
  }
  const std::lock_guard lock(map.lock);
  if (sequence.broken || map.store_lost) {
    sequence.broken = false;
    map.store_lost = false;
    // What was stored is sent again.
    if (!map.sent.empty()) {
      std::memcpy(map.sent.data(), map.target, map.bytes);
    }
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
  });
}
SISCI_EXPORT(SCICreateMapSequence);

void SCIRemoveSequence(sci_sequence_t sequence, unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(sequence != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    delete sequence;
  });
}
SISCI_EXPORT(SCIRemoveSequence);

sci_sequence_status_t SCIStartSequence(sci_sequence_t sequence, unsigned int /*flags*/,
                                       sci_error_t* error) {
  return call(error, [&] {
    require(sequence != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    const sci_remote_segment* remote = sequence->map.remote;
    const bool reachable = remote == nullptr || (!remote->lost && remote->operational);
    sequence->broken = !reachable;
    return reachable ? SCI_SEQ_OK : SCI_SEQ_NOT_RETRIABLE;
  });
}
SISCI_EXPORT(SCIStartSequence);

sci_sequence_status_t SCICheckSequence(sci_sequence_t sequence, unsigned int /*flags*/,
                                       sci_error_t* error) {
  return call(error, [&] {
    require(sequence != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    return check(*sequence);
  });
}
SISCI_EXPORT(SCICheckSequence);

void SCIStoreBarrier(sci_sequence_t sequence, unsigned int /*flags*/) {
  _mm_sfence();
  if (sequence != nullptr && sequence->map.target != nullptr) {
    flush_map(*Library::get(), sequence->map, true);
  }
}
SISCI_EXPORT(SCIStoreBarrier);

void SCIFlush(sci_sequence_t sequence, unsigned int flags) { SCIStoreBarrier(sequence, flags); }
SISCI_EXPORT(SCIFlush);

void SCIMemCpy(sci_sequence_t sequence, void* memory, sci_map_t map, size_t offset, size_t size,
               unsigned int flags, sci_error_t* error) {
  call(error, [&] {
    const sci_map& remote = checked(map);
    require(memory != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    require(offset <= remote.bytes && size <= remote.bytes - offset, SCI_ERR_OUT_OF_RANGE);
    if ((flags & SCI_FLAG_BLOCK_READ) != 0) {
      const std::byte* from = remote.target != nullptr ? remote.target : remote.pointer;
      std::memcpy(memory, from + offset, size);
    } else {
      std::memcpy(remote.pointer + offset, memory, size);
    }
    if (sequence != nullptr && (flags & SCI_FLAG_ERROR_CHECK) != 0) {
      require(check(*sequence) == SCI_SEQ_OK, SCI_ERR_TRANSFER_FAILED);
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
