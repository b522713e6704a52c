// Segments: memory of one end that the other end is connected to.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "transport/window/sisci/api.h"
#include "transport/window/sisci/clean_up.h"

namespace ropewalk::transport::window::sisci {

/// What all objects of a driver use. Outlives them.
struct Context {
  std::shared_ptr<const Library> library;
  CleanUp clean_up;
  std::chrono::nanoseconds loss_time{};  ///< a link that is down for longer has lost the peer

  /// Warns once per driver, however many connections find the same.
  void warn_once(const std::string& text);

 private:
  Mutex mutex_;
  std::set<std::string> said_ RW_GUARDED_BY(mutex_);
};

/// A descriptor of the library, which objects are made from. It is closed after the last of them.
class OpenDescriptor {
 public:
  /// @throws Error kSystem
  static std::shared_ptr<OpenDescriptor> open(Context& context);
  OpenDescriptor(Context& context, Descriptor handle) : context_(context), handle_(handle) {}
  ~OpenDescriptor();
  OpenDescriptor(const OpenDescriptor&) = delete;
  OpenDescriptor& operator=(const OpenDescriptor&) = delete;
  [[nodiscard]] Descriptor get() const noexcept { return handle_; }

 private:
  Context& context_;
  Descriptor handle_;
};

/// Makes a local segment of a random id, which nobody else has.
/// @return how it went
/// @param left set by the library when a connected end disconnects or ends; lives as long as the
///        segment; may be null
Status create_segment(const Library& library, Descriptor descriptor, std::size_t bytes,
                      unsigned flags, std::atomic<bool>* left, LocalSegment& made, unsigned& id);

/// Disconnects all peers of a segment.
/// @return the step that releases it
CleanUpStep remove_segment_step(const std::shared_ptr<const Library>& library, LocalSegment segment,
                                unsigned adapter, std::shared_ptr<OpenDescriptor> descriptor);

/// This end's window: contiguous here, in one segment or, where the system has no such large piece
/// of contiguous memory, in several. Zero at first. Its first page is the driver's.
class OwnWindow {
 public:
  /// @throws Error kSystem when not even small pieces can be had
  OwnWindow(Context& context, std::shared_ptr<OpenDescriptor> descriptor, unsigned adapter,
            std::size_t bytes);
  ~OwnWindow();
  OwnWindow(const OwnWindow&) = delete;
  OwnWindow& operator=(const OwnWindow&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  /// What the other end connects to; the rest it finds in the window itself.
  [[nodiscard]] unsigned first_id() const noexcept { return pieces_.front().id; }
  [[nodiscard]] std::size_t pieces() const noexcept { return pieces_.size(); }
  /// That which begins with data().
  [[nodiscard]] LocalSegment first_segment() const noexcept { return pieces_.front().segment; }
  /// Whether an end that was connected is so no more.
  [[nodiscard]] bool left() const noexcept { return *left_; }

 private:
  struct Piece {
    LocalSegment segment = nullptr;
    Map map = nullptr;
    unsigned id = 0;
  };
  Status make(std::size_t bytes, std::size_t piece_bytes);
  void give_back();
  void write_table(std::size_t piece_bytes);

  Context& context_;
  std::shared_ptr<OpenDescriptor> descriptor_;
  unsigned adapter_;
  std::vector<Piece> pieces_;
  std::byte* data_ = nullptr;
  std::shared_ptr<std::atomic<bool>> left_ = std::make_shared<std::atomic<bool>>(false);
};

/// The events that the library reported about a connected segment, from its own thread.
struct RemoteState {
  std::atomic<bool> lost{false};
  std::atomic<std::int64_t> down_since{0};  ///< on the steady clock, in ns; 0: operational
};

/// A connected segment of another node, not mapped.
class RemoteRegion {
 public:
  /// Tries once.
  static std::unique_ptr<RemoteRegion> connect(Context& context,
                                               std::shared_ptr<OpenDescriptor> descriptor,
                                               unsigned adapter, unsigned node, unsigned id,
                                               Status& status);
  ~RemoteRegion();
  RemoteRegion(const RemoteRegion&) = delete;
  RemoteRegion& operator=(const RemoteRegion&) = delete;
  [[nodiscard]] RemoteSegment get() const noexcept { return segment_; }
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] bool lost() const noexcept { return state_->lost; }
  /// Why the other end cannot be reached any more, if so.
  [[nodiscard]] std::optional<std::string> gone() const;

 private:
  friend class PeerWindow;
  RemoteRegion(Context& context, std::shared_ptr<OpenDescriptor> descriptor)
      : context_(context), descriptor_(std::move(descriptor)) {}
  Context& context_;
  std::shared_ptr<OpenDescriptor> descriptor_;
  RemoteSegment segment_ = nullptr;
  std::shared_ptr<RemoteState> state_ = std::make_shared<RemoteState>();
};

/// The other end's window, mapped: stores of the CPU, and where copies go.
class PeerWindow {
 public:
  /// Tries once.
  /// @return null, with the status, when it is not possible now
  static std::unique_ptr<PeerWindow> connect(Context& context,
                                             const std::shared_ptr<OpenDescriptor>& descriptor,
                                             unsigned adapter, unsigned node, unsigned first_id,
                                             Status& status);
  ~PeerWindow();
  PeerWindow(const PeerWindow&) = delete;
  PeerWindow& operator=(const PeerWindow&) = delete;

  /// Stores; they arrive in any order until flush().
  void put(std::size_t offset, const void* data, std::size_t bytes);
  void put_word(std::size_t offset, std::uint64_t value);
  /// Earlier stores leave the CPU before later ones.
  void flush();
  /// Loads, slowly. Stores before it have arrived when it is done.
  void get(std::size_t offset, void* data, std::size_t bytes);

  /// Where it is mapped; null if that is in several pieces.
  [[nodiscard]] std::byte* whole() const noexcept {
    return pieces_.size() == 1 ? pieces_.front().data : nullptr;
  }

  /// Where a copy of the library's goes: the segment, the offset in it, and the bytes that are left
  /// there.
  struct Target {
    RemoteSegment segment;
    std::size_t offset;
    std::size_t room;
  };
  [[nodiscard]] Target target_at(std::size_t offset) const;

  [[nodiscard]] std::optional<std::string> gone() const;
  /// Whether stores since the last call were lost in transit.
  /// @return a text that describes the loss
  [[nodiscard]] std::optional<std::string> stores_lost();

 private:
  struct Piece {
    std::unique_ptr<RemoteRegion> region;
    Map map = nullptr;
    Sequence sequence = nullptr;
    std::byte* data = nullptr;
    bool stored = false;     // since the last flush
    bool unchecked = false;  // since the last stores_lost()
  };
  explicit PeerWindow(Context& context) : context_(context) {}
  Status add_piece(const std::shared_ptr<OpenDescriptor>& descriptor, unsigned adapter,
                   unsigned node, unsigned id);

  Context& context_;
  std::size_t piece_bytes_ = 0;
  std::vector<Piece> pieces_;
};

/// The driver's page in front of each window.
inline constexpr std::size_t kHeaderBytes = 8192;
/// In it: where the other end's answer comes (word by word, the last makes it valid), ...
inline constexpr std::size_t kReplyOffset = 64;
/// ... where it says that it goes, ...
inline constexpr std::size_t kGoodbyeOffset = 128;
/// ... what it did to try registered memory, ...
inline constexpr std::size_t kTrialOffset = 192;
/// ... the segments of this window (written here, read by the other end), ...
inline constexpr std::size_t kTableOffset = 1024;
/// ... and room for a pattern.
inline constexpr std::size_t kScratchOffset = 4096;
inline constexpr std::size_t kScratchBytes = 2048;
/// Where this end reads back what it wrote into GPU memory of the other end, a line for each queue.
inline constexpr std::size_t kReadBackOffset = 6144;
inline constexpr std::size_t kReadBackLine = 64;

}  // namespace ropewalk::transport::window::sisci
