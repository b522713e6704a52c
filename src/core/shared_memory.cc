#include "core/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/mutex.h"
#include "core/units.h"

namespace ropewalk {
namespace {

constexpr const char* kDevShm = "/dev/shm";

// A signal ends fallocate with EINTR and undoes the whole call, so long ranges go in pieces: a
// process with a fast interval timer still gets on.
constexpr std::size_t kReservePieceBytes = std::size_t{16} << 20;

std::size_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t round_up_to_pages(std::size_t bytes) {
  const std::size_t page = page_bytes();
  if (bytes == 0 || bytes > std::numeric_limits<off_t>::max() - page) {
    throw Error(Errc::kInvalidArgument, "shared memory of {} bytes", bytes);
  }
  return (bytes + page - 1) / page * page;
}

std::string describe_dev_shm() {
  struct statvfs state {};
  if (statvfs(kDevShm, &state) != 0) return system_error(errno, "statvfs of /dev/shm").what();
  return fmt::format("/dev/shm is {} with {} free", format_bytes(state.f_blocks * state.f_frsize),
                     format_bytes(state.f_bavail * state.f_frsize));
}

// The error of an allocation, with the numbers that explain it.
Error no_memory(int saved_errno, std::size_t needed, bool dev_shm) {
  const std::string need = format_bytes(needed);
  if (dev_shm) {
    return system_error(saved_errno,
                        fmt::format("shared memory: {}; {} {} needed", describe_dev_shm(), need,
                                    needed == 1 ? "was" : "were"));
  }
  return system_error(
      saved_errno, fmt::format("shared memory from anonymous files (memfd): {} were needed", need));
}

FileDescriptor make_memfd(int& failure) {
  const int fd = memfd_create("ropewalk", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  failure = fd < 0 ? errno : 0;
  if (fd >= 0 && fchmod(fd, S_IRUSR | S_IWUSR) != 0) {
    log::info(log::kShm, "{}", system_error(errno, "fchmod of a memfd").what());
  }
  return FileDescriptor(fd);
}

FileDescriptor make_dev_shm_file() {
  FileDescriptor fd(open(kDevShm, O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!fd) throw system_error(errno, "open of an unnamed file in /dev/shm");
  return fd;
}

// Only a memfd of ours carries this seal: an unnamed file of a tmpfs cannot be sealed.
bool sealed_against_shrinking(int fd) noexcept {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

}  // namespace

// The pages of one segment in this process's memory. Those that may be found are in a list, which
// needs no memory of its own, so that a program that unloads the library loses none.
class SharedMemory::Mapping : public std::enable_shared_from_this<Mapping> {
  static inline Mutex mutex;
  static inline Mapping* first RW_GUARDED_BY(mutex) = nullptr;

 public:
  // One that once() finds.
  static std::shared_ptr<Mapping> listed(int fd, std::size_t bytes) {
    const File file = file_of(fd);
    const Lock lock(mutex);
    return make(file, fd, bytes);
  }

  // One of the same file that has at least `bytes`; made if there is none.
  static std::shared_ptr<Mapping> once(int fd, std::size_t bytes) {
    const File file = file_of(fd);
    const Lock lock(mutex);
    for (Mapping* each = first; each != nullptr; each = each->next_) {
      if (each->file_ != file || each->size_ < bytes) continue;
      // Its last user may be about to unmap it.
      if (auto found = each->weak_from_this().lock()) return found;
    }
    return make(file, fd, bytes);
  }

  // One that nobody else finds.
  Mapping(int fd, std::size_t bytes) : size_(bytes) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
      throw system_error(errno, fmt::format("mmap of {} of shared memory", format_bytes(bytes)));
    }
    data_ = static_cast<std::byte*>(mapped);
  }
  ~Mapping() {
    if (listed_) leave();
    munmap(data_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }

  // A share of the attachment, without what keeps this mapping.
  Attachment* take_share(const void* key, const MakeAttachment& make) {
    const Lock lock(attached_mutex_);
    for (Attached& each : attached_) {
      if (each.key != key) continue;
      ++each.shares;
      return each.attachment.get();
    }
    attached_.reserve(attached_.size() + 1);  // so that nothing fails once it is made
    attached_.push_back({key, 1, make({data_, size_})});
    return attached_.back().attachment.get();
  }
  void end_share(const Attachment* attachment) noexcept {
    const Lock lock(attached_mutex_);
    const auto found = std::ranges::find(
        attached_, attachment, [](const Attached& each) { return each.attachment.get(); });
    // Counted and destroyed with the lock held, which a weak_ptr would not do: whoever finds none
    // makes one at once, and what the last one did must be undone by then.
    if (--found->shares == 0) attached_.erase(found);
  }

 private:
  struct Attached {
    const void* key;
    int shares;
    std::unique_ptr<Attachment> attachment;
  };

  using File = std::pair<dev_t, ino_t>;  // belongs to no other file while it is mapped
  static File file_of(int fd) {
    struct stat state {};
    if (fstat(fd, &state) != 0) throw system_error(errno, "fstat of shared memory");
    return {state.st_dev, state.st_ino};
  }
  static std::shared_ptr<Mapping> make(File file, int fd, std::size_t bytes) RW_REQUIRES(mutex) {
    auto made = std::make_shared<Mapping>(fd, bytes);
    made->file_ = file;
    made->next_ = first;
    if (first != nullptr) first->previous_ = made.get();
    first = made.get();
    made->listed_ = true;
    return made;
  }
  void leave() noexcept {
    const Lock lock(mutex);
    (previous_ != nullptr ? previous_->next_ : first) = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
  }

  std::byte* data_ = nullptr;
  std::size_t size_;
  bool listed_ = false;
  File file_;
  Mapping* next_ RW_GUARDED_BY(mutex) = nullptr;
  Mapping* previous_ RW_GUARDED_BY(mutex) = nullptr;
  Mutex attached_mutex_;
  std::vector<Attached> attached_ RW_GUARDED_BY(attached_mutex_);  // empty when this is destroyed
};

ShmBacking parse_shm_backing(std::string_view text) {
  if (text == "auto") return ShmBacking::kAuto;
  if (text == "memfd") return ShmBacking::kMemfd;
  if (text == "dev_shm") return ShmBacking::kDevShm;
  throw Error(Errc::kInvalidArgument, "'{}' is not a shared-memory backing (auto, memfd, dev_shm)",
              text);
}

SharedMemory SharedMemory::create(std::size_t bytes, ShmBacking backing) {
  const std::size_t size = round_up_to_pages(bytes);
  bool dev_shm = backing == ShmBacking::kDevShm;
  FileDescriptor fd;
  if (!dev_shm) {
    int failure = 0;
    fd = make_memfd(failure);
    if (!fd && backing == ShmBacking::kMemfd) throw system_error(failure, "memfd_create");
    dev_shm = !fd;
    if (dev_shm) {
      log::info(log::kShm, "{}; shared memory comes from /dev/shm",
                system_error(failure, "memfd_create").what());
    }
  }
  if (dev_shm) fd = make_dev_shm_file();
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) throw no_memory(errno, size, dev_shm);
  // Without the seal a peer could cut the file short, and our next touch would be a SIGBUS.
  if (!dev_shm && fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw system_error(errno, "sealing shared memory");
  }
  std::shared_ptr<Mapping> mapping = Mapping::listed(fd.get(), size);
  return {std::move(fd), std::move(mapping), size, dev_shm};
}

SharedMemory SharedMemory::map(FileDescriptor fd, std::size_t bytes) {
  return of_peer(std::move(fd), bytes, false);
}

SharedMemory SharedMemory::map_once(FileDescriptor fd, std::size_t bytes) {
  return of_peer(std::move(fd), bytes, true);
}

SharedMemory SharedMemory::of_peer(FileDescriptor fd, std::size_t bytes, bool once) {
  const std::size_t size = round_up_to_pages(bytes);
  struct stat state {};
  if (fstat(fd.get(), &state) != 0) throw system_error(errno, "fstat of shared memory");
  if (!S_ISREG(state.st_mode) || state.st_size < 0 ||
      static_cast<std::size_t>(state.st_size) < size) {
    throw Error(Errc::kSystem, "shared memory from a peer has {} bytes; {} were expected",
                state.st_size, size);
  }
  const bool dev_shm = !sealed_against_shrinking(fd.get());
  std::shared_ptr<Mapping> mapping =
      once ? Mapping::once(fd.get(), size) : std::make_shared<Mapping>(fd.get(), size);
  return {std::move(fd), std::move(mapping), size, dev_shm};
}

SharedMemory::SharedMemory(FileDescriptor fd, std::shared_ptr<Mapping> mapping, std::size_t size,
                           bool dev_shm)
    : fd_(std::move(fd)),
      mapping_(std::move(mapping)),
      data_(mapping_->data()),
      size_(size),
      dev_shm_(dev_shm) {
  const std::size_t pages = size / page_bytes();
  reserved_ = std::make_unique<std::atomic<std::uint64_t>[]>((pages + 63) / 64);
}

std::shared_ptr<SharedMemory::Attachment> SharedMemory::attach_once(
    const void* key, const MakeAttachment& make) const {
  // The deleter's copy keeps the mapping.
  return {mapping_->take_share(key, make),
          [mapping = mapping_](const Attachment* attachment) { mapping->end_share(attachment); }};
}

void SharedMemory::reserve(std::size_t offset, std::size_t bytes) {
  if (offset > size_ || bytes > size_ - offset) {
    throw Error(Errc::kInvalidArgument, "reserving {} bytes at {} of {} bytes of shared memory",
                bytes, offset, size_);
  }
  if (bytes == 0) return;
  const std::size_t page = page_bytes();
  const std::size_t first = offset / page;
  const std::size_t end = (offset + bytes + page - 1) / page;
  const auto has = [&](std::size_t index) {
    return (reserved_[index / 64].load(std::memory_order_relaxed) >> (index % 64) & 1) != 0;
  };
  for (std::size_t at = first; at < end;) {
    if (has(at)) {
      ++at;
      continue;
    }
    std::size_t stop = at + 1;
    while (stop < end && !has(stop) && (stop - at) * page < kReservePieceBytes) ++stop;
    while (fallocate(fd_.get(), 0, static_cast<off_t>(at * page),
                     static_cast<off_t>((stop - at) * page)) != 0) {
      if (errno == EINTR) continue;
      throw no_memory(errno, bytes, dev_shm_);
    }
    // Relaxed: a bit says only that the kernel need not be asked again; it guards no data.
    for (; at < stop; ++at) {
      reserved_[at / 64].fetch_or(std::uint64_t{1} << (at % 64), std::memory_order_relaxed);
    }
  }
}

}  // namespace ropewalk
