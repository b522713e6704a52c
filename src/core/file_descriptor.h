// The owner of a file descriptor.
#pragma once

#include <cstdint>
#include <utility>

namespace ropewalk {

/// Owns a file descriptor and closes it once; below 0 it owns none.
///
/// Threads: one at a time per object.
class FileDescriptor {
 public:
  /// What becomes of it in a forked child. A copy of a connection in a child that outlives its
  /// parent would hide the parent's death from the other end: connections are closed there.
  enum class InForkedChild : std::uint8_t { kKept, kClosed };

  FileDescriptor() = default;
  explicit FileDescriptor(int fd, InForkedChild in_child = InForkedChild::kKept);
  FileDescriptor(FileDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), in_child_(other.in_child_) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { close(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Closes it now; then it owns none. In a forked child, one that the fork closed is left alone.
  void close() noexcept;

 private:
  int fd_ = -1;
  InForkedChild in_child_ = InForkedChild::kKept;
};

/// Raises the soft limit of open files to the hard one. @return true when that gained any
bool raise_descriptor_limit() noexcept;

}  // namespace ropewalk
