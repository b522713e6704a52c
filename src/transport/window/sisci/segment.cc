#include "transport/window/sisci/segment.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/random.h"

namespace ropewalk::transport::window::sisci {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSmallestPiece = 16 << 10;
constexpr std::size_t kMaxPieces = 128;
constexpr int kIdTries = 64;
constexpr std::size_t kMostQueues = 32;  // as the setting SISCI_QUEUES permits

// What the first piece tells of all, at kTableOffset.
struct Table {
  std::uint64_t piece_bytes = 0;
  std::uint64_t count = 0;
  std::array<std::uint32_t, kMaxPieces> ids{};
};
static_assert(kTableOffset + sizeof(Table) <= kScratchOffset);
static_assert(kScratchOffset + kScratchBytes <= kReadBackOffset);
static_assert(kReadBackOffset + kMostQueues * kReadBackLine <= kHeaderBytes);
static_assert(kHeaderBytes <= kSmallestPiece);

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// Runs in a thread of the library, so it only records the event.
CallbackAction on_remote_event(void* arg, RemoteSegment /*segment*/, Reason reason,
                               Status /*status*/) {
  auto& state = *static_cast<RemoteState*>(arg);
  switch (reason) {
    case Reason::kLost:
    case Reason::kDisconnect: state.lost = true; break;
    case Reason::kNotOperational: state.down_since = now_ns(); break;
    case Reason::kOperational: state.down_since = 0; break;
    case Reason::kConnect: break;
  }
  return CallbackAction::kContinue;
}

CallbackAction on_local_event(void* arg, LocalSegment /*segment*/, Reason reason, unsigned /*node*/,
                              unsigned /*adapter*/, Status /*status*/) {
  if (reason == Reason::kDisconnect || reason == Reason::kLost) {
    *static_cast<std::atomic<bool>*>(arg) = true;
  }
  return CallbackAction::kContinue;
}

// A step is tried again only while the object is busy; anything else that goes wrong is said once.
template <typename Call>
CleanUpStep step(std::shared_ptr<const Library> library, const char* what, Call body) {
  return [library = std::move(library), what, body = std::move(body)] {
    Status status = Status::kUnset;
    body(*library, &status);
    if (status == Status::kBusy) return false;
    if (status != Status::kOk) {
      log::info(log::kNet, "sisci: {}: {}", what, library->words(status));
    }
    return true;
  };
}

}  // namespace

void Context::warn_once(const std::string& text) {
  {
    const Lock lock(mutex_);
    if (!said_.insert(text).second) return;
  }
  log::warn("{}", text);
}

std::shared_ptr<OpenDescriptor> OpenDescriptor::open(Context& context) {
  Descriptor handle = nullptr;
  Status status = Status::kUnset;
  (*context.library)->Open(&handle, 0, &status);
  if (status != Status::kOk) {
    throw Error(Errc::kSystem, "sisci: SCIOpen: {}", context.library->words(status));
  }
  return std::make_shared<OpenDescriptor>(context, handle);
}

OpenDescriptor::~OpenDescriptor() {
  context_.clean_up.add({step(context_.library, "SCIClose",
                              [handle = handle_](const Library& library, Status* status) {
                                library->Close(handle, 0, status);
                              })});
}

Status create_segment(const Library& library, Descriptor descriptor, std::size_t bytes,
                      unsigned flags, std::atomic<bool>* left, LocalSegment& made, unsigned& id) {
  if (left != nullptr) flags |= library.flags().use_callback;
  // Ids are 32 bits for a whole node: random ones are hard to guess and seldom taken.
  Status status = Status::kUnset;
  for (int i = 0; i < kIdTries; ++i) {
    fill_random(std::as_writable_bytes(std::span(&id, 1)));
    status = Status::kUnset;
    library->CreateSegment(descriptor, &made, id, bytes, left == nullptr ? nullptr : on_local_event,
                           left, flags, &status);
    if (status != Status::kSegmentIdUsed) break;
  }
  return status;
}

CleanUpStep remove_segment_step(const std::shared_ptr<const Library>& library, LocalSegment segment,
                                unsigned adapter, std::shared_ptr<OpenDescriptor> descriptor) {
  Status status = Status::kUnset;
  (*library)->SetSegmentUnavailable(segment, adapter, library->flags().force_disconnect, &status);
  return step(library, "SCIRemoveSegment",
              [segment, descriptor = std::move(descriptor)](const Library& used, Status* result) {
                used->RemoveSegment(segment, used.flags().force_remove, result);
              });
}

// ---- this end ------------------------------------------------------------------------------

OwnWindow::OwnWindow(Context& context, std::shared_ptr<OpenDescriptor> descriptor, unsigned adapter,
                     std::size_t bytes)
    : context_(context), descriptor_(std::move(descriptor)), adapter_(adapter) {
  const std::size_t all = (kHeaderBytes + bytes + kPage - 1) / kPage * kPage;
  Status status = Status::kUnset;
  for (std::size_t piece = all; piece >= kSmallestPiece;
       piece = (piece / 2 + kPage - 1) / kPage * kPage) {
    status = make(all, piece);
    if (status == Status::kOk) {
      write_table(piece);
      if (pieces_.size() > 1) {
        log::info(log::kNet, "sisci: a window of {} bytes is in {} segments", all, pieces_.size());
      }
      return;
    }
    give_back();
    if (!out_of_space(status)) break;
  }
  throw Error(Errc::kSystem,
              "sisci: adapter {}: no segment for a window of {} bytes, not in pieces either: {}",
              adapter, all, context.library->words(status));
}

Status OwnWindow::make(std::size_t bytes, std::size_t piece_bytes) {
  const Library& library = *context_.library;
  const std::size_t count = (bytes + piece_bytes - 1) / piece_bytes;
  if (count > kMaxPieces) return Status::kNoSpace;
  std::byte* location = nullptr;
  if (count > 1) {
    // A range of addresses for the pieces to be mapped at, one after the other.
    void* range = mmap(nullptr, count * piece_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (range == MAP_FAILED) return Status::kNoSpace;
    location = static_cast<std::byte*>(range);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t size = std::min(piece_bytes, bytes - i * piece_bytes);
    Piece piece;
    Status status =
        create_segment(library, descriptor_->get(), size, 0, left_.get(), piece.segment, piece.id);
    if (status != Status::kOk) return status;
    pieces_.push_back(piece);
    status = Status::kUnset;
    library->PrepareSegment(piece.segment, adapter_, 0, &status);
    if (status != Status::kOk) return status;
    std::byte* const wanted = location == nullptr ? nullptr : location + i * piece_bytes;
    status = Status::kUnset;
    void* mapped = library->MapLocalSegment(
        piece.segment, &pieces_.back().map, 0, size, wanted,
        wanted == nullptr ? 0 : library.flags().fixed_map_address, &status);
    if (status != Status::kOk) return status;
    if (wanted != nullptr && mapped != wanted) return Status::kNotSupported;
    if (i == 0) data_ = static_cast<std::byte*>(mapped);
    std::memset(mapped, 0, size);
  }
  for (const Piece& piece : pieces_) {
    Status status = Status::kUnset;
    library->SetSegmentAvailable(piece.segment, adapter_, 0, &status);
    if (status != Status::kOk) return status;
  }
  return Status::kOk;
}

void OwnWindow::write_table(std::size_t piece_bytes) {
  Table table;
  table.piece_bytes = piece_bytes;
  table.count = pieces_.size();
  for (std::size_t i = 0; i < pieces_.size(); ++i) table.ids[i] = pieces_[i].id;
  std::memcpy(data_ + kTableOffset, &table, sizeof table);
}

void OwnWindow::give_back() {
  for (const Piece& piece : pieces_) {
    std::deque<CleanUpStep> steps;
    if (piece.map != nullptr) {
      steps.push_back(step(context_.library, "SCIUnmapSegment",
                           [map = piece.map](const Library& library, Status* status) {
                             library->UnmapSegment(map, 0, status);
                           }));
    }
    // By force: a peer that has not disconnected gets an event, and this end does not wait for its
    // answer.
    steps.push_back(remove_segment_step(context_.library, piece.segment, adapter_, descriptor_));
    context_.clean_up.add(std::move(steps));
  }
  pieces_.clear();
  data_ = nullptr;
}

OwnWindow::~OwnWindow() { give_back(); }

// ---- the other end -------------------------------------------------------------------------

std::unique_ptr<RemoteRegion> RemoteRegion::connect(Context& context,
                                                    std::shared_ptr<OpenDescriptor> descriptor,
                                                    unsigned adapter, unsigned node, unsigned id,
                                                    Status& status) {
  const Library& library = *context.library;
  std::unique_ptr<RemoteRegion> made(new RemoteRegion(context, std::move(descriptor)));
  status = Status::kUnset;
  library->ConnectSegment(made->descriptor_->get(), &made->segment_, node, id, adapter,
                          on_remote_event, made->state_.get(), library.flags().infinite_timeout,
                          library.flags().use_callback, &status);
  if (status != Status::kOk) {
    made->segment_ = nullptr;
    return nullptr;
  }
  return made;
}

RemoteRegion::~RemoteRegion() {
  if (segment_ == nullptr) return;
  // The library may call back until it is disconnected, so the state lives as long.
  context_.clean_up.add({step(context_.library, "SCIDisconnectSegment",
                              [segment = segment_, state = state_, descriptor = descriptor_](
                                  const Library& library, Status* status) {
                                library->DisconnectSegment(segment, 0, status);
                              })});
}

std::size_t RemoteRegion::bytes() const {
  return (*context_.library)->GetRemoteSegmentSize(segment_);
}

std::optional<std::string> RemoteRegion::gone() const {
  if (state_->lost) return "its segment is gone: the process has ended or closed it";
  const std::int64_t since = state_->down_since;
  if (since != 0 && now_ns() - since > context_.loss_time.count()) {
    return "the link to it is down";
  }
  return std::nullopt;
}

std::unique_ptr<PeerWindow> PeerWindow::connect(Context& context,
                                                const std::shared_ptr<OpenDescriptor>& descriptor,
                                                unsigned adapter, unsigned node, unsigned first_id,
                                                Status& status) {
  std::unique_ptr<PeerWindow> made(new PeerWindow(context));
  status = made->add_piece(descriptor, adapter, node, first_id);
  if (status != Status::kOk) return nullptr;
  Table table;
  made->piece_bytes_ = made->pieces_.front().region->bytes();
  made->get(kTableOffset, &table, sizeof table);
  if (table.count == 0 || table.count > kMaxPieces || table.piece_bytes < kSmallestPiece ||
      table.ids[0] != first_id) {
    throw Error(
        Errc::kPeerLost,
        "sisci: node {}: what was read from a segment is not the table of a window: the link or "
        "the peer is not what it should be",
        node);
  }
  made->piece_bytes_ = static_cast<std::size_t>(table.piece_bytes);
  for (std::size_t i = 1; i < table.count; ++i) {
    status = made->add_piece(descriptor, adapter, node, table.ids[i]);
    if (status != Status::kOk) return nullptr;
  }
  return made;
}

Status PeerWindow::add_piece(const std::shared_ptr<OpenDescriptor>& descriptor, unsigned adapter,
                             unsigned node, unsigned id) {
  const Library& library = *context_.library;
  Piece piece;
  Status status = Status::kUnset;
  piece.region = RemoteRegion::connect(context_, descriptor, adapter, node, id, status);
  if (status != Status::kOk) return status;
  status = Status::kUnset;
  piece.data = static_cast<std::byte*>(const_cast<void*>(library->MapRemoteSegment(
      piece.region->get(), &piece.map, 0, piece.region->bytes(), nullptr, 0, &status)));
  if (status != Status::kOk) return status;
  status = Status::kUnset;
  library->CreateMapSequence(piece.map, &piece.sequence, 0, &status);
  if (status != Status::kOk) piece.sequence = nullptr;
  pieces_.push_back(std::move(piece));
  if (pieces_.back().sequence != nullptr) {
    (void)library->StartSequence(pieces_.back().sequence, 0, &status);
  }
  return Status::kOk;
}

PeerWindow::~PeerWindow() {
  for (Piece& piece : pieces_) {
    std::deque<CleanUpStep> steps;
    if (piece.sequence != nullptr) {
      steps.push_back(step(context_.library, "SCIRemoveSequence",
                           [sequence = piece.sequence](const Library& library, Status* status) {
                             library->RemoveSequence(sequence, 0, status);
                           }));
    }
    steps.push_back(step(context_.library, "SCIUnmapSegment",
                         [map = piece.map](const Library& library, Status* status) {
                           library->UnmapSegment(map, 0, status);
                         }));
    // The region disconnects after the map is removed, whenever that is.
    steps.push_back([region = std::shared_ptr<RemoteRegion>(std::move(piece.region))]() mutable {
      region.reset();
      return true;
    });
    context_.clean_up.add(std::move(steps));
  }
}

PeerWindow::Target PeerWindow::target_at(std::size_t offset) const {
  const Piece& piece = pieces_[offset / piece_bytes_];
  const std::size_t within = offset % piece_bytes_;
  return {piece.region->get(), within, piece_bytes_ - within};
}

void PeerWindow::put(std::size_t offset, const void* data, std::size_t bytes) {
  const auto* source = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    Piece& piece = pieces_[offset / piece_bytes_];
    const std::size_t within = offset % piece_bytes_;
    const std::size_t part = std::min(bytes, piece_bytes_ - within);
    std::memcpy(piece.data + within, source, part);
    piece.stored = true;
    piece.unchecked = true;
    offset += part;
    source += part;
    bytes -= part;
  }
}

void PeerWindow::put_word(std::size_t offset, std::uint64_t value) {
  Piece& piece = pieces_[offset / piece_bytes_];
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(piece.data + offset % piece_bytes_))
      .store(value, std::memory_order_release);
  piece.stored = true;
  piece.unchecked = true;
}

void PeerWindow::flush() {
  const Library& library = *context_.library;
  for (Piece& piece : pieces_) {
    if (!std::exchange(piece.stored, false)) continue;
    library->Flush(piece.sequence, library.flags().flush_cpu_buffers_only);
  }
}

void PeerWindow::get(std::size_t offset, void* data, std::size_t bytes) {
  flush();
  auto* destination = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const Piece& piece = pieces_[offset / piece_bytes_];
    const std::size_t within = offset % piece_bytes_;
    const std::size_t part = std::min(bytes, piece_bytes_ - within);
    const Library& library = *context_.library;
    if (library.flags().block_read != 0) {
      Status status = Status::kUnset;
      library->MemCpy(piece.sequence, destination, piece.map, within, part,
                      library.flags().block_read, &status);
      if (status != Status::kOk) {
        throw Error(Errc::kPeerLost, "sisci: reading from a segment: {}", library.words(status));
      }
    } else {
      std::memcpy(destination, piece.data + within, part);
    }
    offset += part;
    destination += part;
    bytes -= part;
  }
}

std::optional<std::string> PeerWindow::gone() const {
  for (const Piece& piece : pieces_) {
    if (std::optional<std::string> reason = piece.region->gone()) return reason;
  }
  return std::nullopt;
}

std::optional<std::string> PeerWindow::stores_lost() {
  const Library& library = *context_.library;
  for (Piece& piece : pieces_) {
    if (!std::exchange(piece.unchecked, false) || piece.sequence == nullptr) continue;
    Status status = Status::kUnset;
    const SequenceStatus found = library->CheckSequence(piece.sequence, 0, &status);
    if (found == SequenceStatus::kPending) {
      piece.unchecked = true;
    } else if (status != Status::kOk || found != SequenceStatus::kOk) {
      // It is unknown which stores were made since the link failed, so none can be repeated.
      return "stores to it were lost on the link";
    }
  }
  return std::nullopt;
}

}  // namespace ropewalk::transport::window::sisci
