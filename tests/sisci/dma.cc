// DMA queues: transfers that go on by themselves.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "library.h"

using namespace software_sisci;

namespace {

// Time between two checks that the segment still exists.
constexpr std::size_t kSliceBytes = 512 << 10;
// The part of its transfer that a program copies while it queries a queue's state.
constexpr std::size_t kPollBytes = 512 << 10;

// Memory of another process that registered it.
bool copy_process(pid_t pid, std::uint64_t address, std::byte* local, std::size_t bytes,
                  bool read) {
  if (pid == getpid()) {
    auto* other = reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
    std::memcpy(read ? local : other, read ? other : local, bytes);
    return true;
  }
  const iovec here{local, bytes};
  const iovec there{reinterpret_cast<void*>(address), bytes};  // NOLINT
  const ssize_t moved = read ? process_vm_readv(pid, &here, 1, &there, 1, 0)
                             : process_vm_writev(pid, &here, 1, &there, 1, 0);
  return moved == static_cast<ssize_t>(bytes);
}

// ---- the two sides of a transfer, where one of them is GPU memory

bool local_side(const sci_dma_queue& queue, const sci_dma_queue::Piece& piece, std::byte* host,
                std::size_t bytes, bool get) {
  std::byte* const local = piece.local + queue.copied;
  if (queue.local_gpu) {
    const auto offset = static_cast<std::size_t>(local - queue.local_begin);
    return get ? queue.local_gpu->read(offset, host, bytes)
               : queue.local_gpu->write(offset, host, bytes);
  }
  std::memcpy(get ? host : local, get ? local : host, bytes);
  return true;
}

bool remote_side(const sci_dma_queue& queue, const sci_dma_queue::Piece& piece, std::byte* host,
                 std::size_t bytes, bool get) {
  const sci_remote_segment& remote = *queue.remote;
  const std::size_t offset = piece.remote_offset + queue.copied;
  if (remote.gpu) {
    return get ? remote.gpu->read(offset, host, bytes) : remote.gpu->write(offset, host, bytes);
  }
  if (remote.backing == Backing::kUser) {
    return copy_process(remote.pid, remote.address + offset, host, bytes, get);
  }
  std::byte* const other = remote.memory + offset;
  std::memcpy(get ? host : other, get ? other : host, bytes);
  return true;
}

bool copy_by_bounce(const sci_dma_queue& queue, const sci_dma_queue::Piece& piece,
                    std::size_t bytes) {
  std::vector<std::byte> bounce(bytes);
  return queue.read ? remote_side(queue, piece, bounce.data(), bytes, true) &&
                          local_side(queue, piece, bounce.data(), bytes, false)
                    : local_side(queue, piece, bounce.data(), bytes, true) &&
                          remote_side(queue, piece, bounce.data(), bytes, false);
}

// To all members of a broadcast segment's group.
bool copy_to_group(Library& mine, const sci_dma_queue& queue, const sci_dma_queue::Piece& piece,
                   std::size_t bytes) {
  std::vector<std::byte> slice(bytes);
  if (!local_side(queue, piece, slice.data(), bytes, true)) return false;
  queue.remote->group->store(mine, piece.remote_offset + queue.copied, slice.data(), bytes);
  return true;
}

// @return false when the other side cannot be reached any more
bool copy_slice(Library& mine, sci_dma_queue& queue, const sci_dma_queue::Piece& piece,
                std::size_t bytes) {
  sci_remote_segment& remote = *queue.remote;
  if (remote.lost || !remote.operational) return false;
  if (queue.moves_nothing) return true;
  if (remote.group) return copy_to_group(mine, queue, piece, bytes);
  ConnectionEntry& connection = *remote.connection;
  ++connection.copying;
  bool copied = false;
  if (!connection.cut && remote.entry->generation == remote.generation) {
    std::byte* const local = piece.local + queue.copied;
    const std::size_t offset = piece.remote_offset + queue.copied;
    if (queue.local_gpu || remote.gpu) {
      copied = copy_by_bounce(queue, piece, bytes);
    } else if (remote.backing == Backing::kLibrary) {
      std::byte* const other = remote.memory + offset;
      std::memcpy(queue.read ? local : other, queue.read ? other : local, bytes);
      copied = true;
    } else {
      copied = copy_process(remote.pid, remote.address + offset, local, bytes, queue.read);
    }
  }
  --connection.copying;
  return copied;
}

void finish(Library& mine, sci_dma_queue& queue, sci_dma_queue_state_t state) {
  queue.uses_remote.reset();
  queue.uses_local.reset();
  queue.remote = nullptr;
  queue.local_gpu.reset();
  mine.withdraw(queue);
  const bool calls = queue.callback != nullptr;
  queue.callback_due = calls;
  queue.state = state;
  queue.ended.notify_all();
  if (calls) mine.wake_events();
}

bool in_state(const sci_dma_queue& queue, sci_dma_queue_state_t state) {
  return queue.state == state;
}

}  // namespace

// With the lock of the queue.
bool sci_dma_queue::progress(Library& mine, std::size_t limit) {
  if (state != SCI_DMAQUEUE_POSTED || (due != Clock::time_point{} && Clock::now() < due)) {
    return false;
  }
  if (fails) {
    finish(mine, *this, SCI_DMAQUEUE_ERROR);
    return false;
  }
  for (std::size_t moved = 0; piece < pieces.size() && moved < limit;) {
    const Piece& now = pieces[piece];
    const std::size_t bytes = std::min(kSliceBytes, now.bytes - copied);
    if (!copy_slice(mine, *this, now, bytes)) {
      finish(mine, *this, SCI_DMAQUEUE_ERROR);
      return false;
    }
    moved += bytes;
    copied += bytes;
    if (copied == now.bytes) {
      ++piece;
      copied = 0;
    }
  }
  if (piece != pieces.size()) return true;
  finish(mine, *this, SCI_DMAQUEUE_DONE);
  return false;
}

Looked sci_dma_queue::look(Library& /*library*/) {
  if (!callback_due) return Looked::kNothing;
  sci_cb_dma_t call_now = nullptr;
  {
    const std::lock_guard guard(lock);
    if (!callback_due.exchange(false)) return Looked::kNothing;
    call_now = callback;
  }
  const sci_error_t status =
      in_state(*this, SCI_DMAQUEUE_DONE) ? SCI_ERR_OK : SCI_ERR_TRANSFER_FAILED;
  // The callback's answer is about this transfer alone; the next one has its own callback.
  (void)call_now(arg, this, status);
  return Looked::kCalled;
}

void SCICreateDMAQueue(sci_desc_t sd, sci_dma_queue_t* queue, unsigned int adapter,
                       unsigned int maxEntries, unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    Library& mine = library();
    require(sd != nullptr && queue != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    require(maxEntries > 0 || !mine.settings()->strict, SCI_ERR_ILLEGAL_PARAMETER);
    mine.check_adapter(adapter);
    const std::size_t most = mine.settings()->max_dma_queues;
    if (++mine.queues > most && most != 0) {
      --mine.queues;
      throw Failure{SCI_ERR_HW_NOSPC};
    }
    auto made = std::make_unique<sci_dma_queue>(*sd);
    made->adapter = adapter;
    made->max_entries = maxEntries;
    *queue = made.release();
    mine.watch(**queue);
  });
}
SISCI_EXPORT(SCICreateDMAQueue);

void SCIRemoveDMAQueue(sci_dma_queue_t queue, unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(queue != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    {
      const std::lock_guard guard(queue->lock);
      require(queue->state != SCI_DMAQUEUE_POSTED, SCI_ERR_ILLEGAL_OPERATION);
    }
    Library& mine = library();
    mine.forget(*queue);
    --mine.queues;
    delete queue;
  });
}
SISCI_EXPORT(SCIRemoveDMAQueue);

namespace {

struct Callback {
  sci_cb_dma_t function;
  void* arg;
};

// Copies until the transfer has ended, or for `timeout` milliseconds.
sci_dma_queue_state_t await_end(Library& mine, sci_dma_queue& queue,
                                std::unique_lock<std::mutex>& guard, unsigned timeout) {
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(timeout);
  for (;;) {
    queue.progress(mine, kPollBytes);
    if (queue.state != SCI_DMAQUEUE_POSTED) return queue.state.load();
    require(timeout == SCI_INFINITE_TIMEOUT || Clock::now() < end, SCI_ERR_TIMEOUT);
    if (queue.due > Clock::now()) {
      queue.ended.wait_until(guard,
                             std::min(queue.due, Clock::now() + std::chrono::milliseconds(1)));
    }
  }
}

// Everything of a start that the three kinds have in common. `local` is null for plain memory.
void start(sci_dma_queue& queue, sci_local_segment* local, sci_remote_segment& remote,
           std::vector<sci_dma_queue::Piece> pieces, Callback callback, unsigned flags) {
  Library& mine = library();
  const auto settings = mine.settings();
  const bool calls = (flags & SCI_FLAG_USE_CALLBACK) != 0;
  require(!calls || callback.function != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
  std::unique_lock guard(queue.lock);
  require(queue.state == SCI_DMAQUEUE_IDLE || queue.state == SCI_DMAQUEUE_DONE,
          SCI_ERR_ILLEGAL_OPERATION);
  const std::size_t most = settings->strict ? queue.max_entries : DIS_DMA_MAX_VECLEN;
  require(pieces.size() <= most, SCI_ERR_MAX_ENTRIES);
  require(!remote.lost, SCI_ERR_SEGMENT_NOT_CONNECTED);
  require(remote.operational, SCI_ERR_NO_LINK_ACCESS);
  std::size_t total = 0;
  for (const auto& piece : pieces) {
    require(piece.bytes > 0, SCI_ERR_SIZE_ALIGNMENT);
    require(
        piece.remote_offset <= remote.bytes && piece.bytes <= remote.bytes - piece.remote_offset,
        SCI_ERR_OUT_OF_RANGE);
    total += piece.bytes;
  }
  require(total <= kMaxTransfer, SCI_ERR_OUT_OF_RANGE);

  const Backing here = local == nullptr ? Backing::kLibrary : local->backing;
  const bool gpu_here = here == Backing::kGpu;
  const bool gpu_there = remote.backing == Backing::kGpu;
  const bool user = here == Backing::kUser || remote.backing == Backing::kUser;
  require(!(gpu_here || gpu_there) || !settings->attach_error, SCI_ERR_TRANSFER_FAILED);
  const bool reads = (flags & SCI_FLAG_DMA_READ) != 0;
  require(!reads || !remote.group, SCI_ERR_ILLEGAL_OPERATION);
  const std::uint64_t number = mine.next_transfer();
  const bool from_gpu = reads ? gpu_there : gpu_here;
  const bool into_gpu = reads ? gpu_here : gpu_there;
  queue.moves_nothing = ((user || from_gpu || into_gpu) && settings->iommu == Iommu::kBroken) ||
                        (from_gpu && !into_gpu && settings->lose_gpu_reads && !reads) ||
                        (into_gpu && !from_gpu && settings->lose_gpu_writes) ||
                        (from_gpu && into_gpu && settings->lose_gpu_to_gpu) ||
                        number == settings->lose_transfer ||
                        (settings->lose_all_transfers && number >= settings->lose_transfer);
  queue.fails = number == settings->fail_transfer;
  queue.pieces = std::move(pieces);
  queue.piece = 0;
  queue.copied = 0;
  queue.read = reads;
  queue.local_gpu = local == nullptr ? nullptr : local->gpu;
  queue.local_begin = local == nullptr ? nullptr : local->memory;
  queue.callback = calls ? callback.function : nullptr;
  queue.arg = callback.arg;
  queue.callback_due = false;
  queue.due = mine.end_of_transfer(queue.adapter, total);
  queue.remote = &remote;
  queue.uses_remote.emplace(remote);
  if (local != nullptr) queue.uses_local.emplace(*local);
  queue.state = SCI_DMAQUEUE_POSTED;
  mine.posted(queue);
  if ((flags & SCI_FLAG_DMA_WAIT) == 0) return;
  require(await_end(mine, queue, guard, SCI_INFINITE_TIMEOUT) == SCI_DMAQUEUE_DONE,
          SCI_ERR_TRANSFER_FAILED);
}

void check_local(const sci_local_segment& local, unsigned adapter, std::size_t offset,
                 std::size_t bytes) {
  require(offset <= local.bytes && bytes <= local.bytes - offset, SCI_ERR_OUT_OF_RANGE);
  require(local.memory != nullptr, SCI_ERR_SEGMENT_NOT_PREPARED);
  require(!local.owner || local.entry->prepared[adapter], SCI_ERR_SEGMENT_NOT_PREPARED);
}

}  // namespace

void SCIStartDmaTransfer(sci_dma_queue_t queue, sci_local_segment_t local,
                         sci_remote_segment_t remote, size_t localOffset, size_t size,
                         size_t remoteOffset, sci_cb_dma_t callback, void* arg, unsigned int flags,
                         sci_error_t* error) {
  call(error, [&] {
    require(queue != nullptr && local != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    require(remote != nullptr, SCI_ERR_SEGMENT_NOT_CONNECTED);
    check_local(*local, queue->adapter, localOffset, size);
    start(*queue, local, *remote, {{local->memory + localOffset, remoteOffset, size}},
          {callback, arg}, flags);
  });
}
SISCI_EXPORT(SCIStartDmaTransfer);

void SCIStartDmaTransferMem(sci_dma_queue_t queue, void* localAddress, sci_remote_segment_t remote,
                            size_t size, size_t remoteOffset, sci_cb_dma_t callback, void* arg,
                            unsigned int flags, sci_error_t* error) {
  call(error, [&] {
    require(queue != nullptr && localAddress != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    require(remote != nullptr, SCI_ERR_SEGMENT_NOT_CONNECTED);
    require(library().settings()->transfer_from_memory, SCI_ERR_NOT_SUPPORTED);
    start(*queue, nullptr, *remote, {{static_cast<std::byte*>(localAddress), remoteOffset, size}},
          {callback, arg}, flags);
  });
}
SISCI_EXPORT(SCIStartDmaTransferMem);

void SCIStartDmaTransferVec(sci_dma_queue_t queue, sci_local_segment_t local,
                            sci_remote_segment_t remote, size_t count, dis_dma_vec_t* vector,
                            sci_cb_dma_t callback, void* arg, unsigned int flags,
                            sci_error_t* error) {
  call(error, [&] {
    require(queue != nullptr && local != nullptr && vector != nullptr && count > 0,
            SCI_ERR_ILLEGAL_PARAMETER);
    require(remote != nullptr, SCI_ERR_SEGMENT_NOT_CONNECTED);
    std::vector<sci_dma_queue::Piece> pieces;
    for (std::size_t i = 0; i < count; ++i) {
      check_local(*local, queue->adapter, vector[i].local_offset, vector[i].size);
      pieces.push_back(
          {local->memory + vector[i].local_offset, vector[i].remote_offset, vector[i].size});
    }
    start(*queue, local, *remote, std::move(pieces), {callback, arg}, flags);
  });
}
SISCI_EXPORT(SCIStartDmaTransferVec);

sci_dma_queue_state_t SCIDMAQueueState(sci_dma_queue_t queue) {
  if (queue->state == SCI_DMAQUEUE_POSTED) {
    const std::unique_lock guard(queue->lock, std::try_to_lock);
    if (guard) queue->progress(*Library::get(), kPollBytes);
  }
  return queue->state;
}
SISCI_EXPORT(SCIDMAQueueState);

sci_dma_queue_state_t SCIWaitForDMAQueue(sci_dma_queue_t queue, unsigned int timeout,
                                         unsigned int /*flags*/, sci_error_t* error) {
  return call(error, [&] {
    require(queue != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    Library& mine = library();
    std::unique_lock guard(queue->lock);
    require(queue->callback == nullptr && queue->state != SCI_DMAQUEUE_IDLE,
            SCI_ERR_ILLEGAL_OPERATION);
    return await_end(mine, *queue, guard, timeout);
  });
}
SISCI_EXPORT(SCIWaitForDMAQueue);

void SCIAbortDMAQueue(sci_dma_queue_t queue, unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(queue != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    const std::lock_guard guard(queue->lock);
    require(queue->state == SCI_DMAQUEUE_POSTED, SCI_ERR_ILLEGAL_OPERATION);
    finish(library(), *queue, SCI_DMAQUEUE_ABORTED);
  });
}
SISCI_EXPORT(SCIAbortDMAQueue);

// ---- channels ------------------------------------------------------------------------------

void SCIRequestDMAChannel(sci_desc_t sd, sci_dma_channel_t* channel, unsigned int adapter,
                          sci_dma_type_t type, unsigned int /*channelId*/, unsigned int /*flags*/,
                          sci_error_t* error) {
  call(error, [&] {
    require(sd != nullptr && channel != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    library().check_adapter(adapter);
    require(type != SCI_DMA_TYPE_TRANSPARENT, SCI_ERR_NOT_SUPPORTED);
    *channel = new sci_dma_channel(*sd);
  });
}
SISCI_EXPORT(SCIRequestDMAChannel);

void SCIAssignDMAChannel(sci_dma_channel_t channel, sci_dma_queue_t queue, unsigned int /*flags*/,
                         sci_error_t* error) {
  call(error, [&] {
    require(channel != nullptr && queue != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    require(queue->state != SCI_DMAQUEUE_POSTED, SCI_ERR_ILLEGAL_OPERATION);
  });
}
SISCI_EXPORT(SCIAssignDMAChannel);

void SCIPrepareLocalSegmentForDMA(sci_dma_channel_t channel, sci_local_segment_t segment,
                                  unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(channel != nullptr && segment != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    ++channel->children;
  });
}
SISCI_EXPORT(SCIPrepareLocalSegmentForDMA);

void SCIPrepareRemoteSegmentForDMA(sci_dma_channel_t channel, sci_remote_segment_t segment,
                                   unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(channel != nullptr && segment != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    ++channel->children;
  });
}
SISCI_EXPORT(SCIPrepareRemoteSegmentForDMA);

void SCIUnprepareLocalSegmentForDMA(sci_dma_channel_t channel, sci_local_segment_t segment,
                                    unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(channel != nullptr && segment != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    require(channel->children > 0, SCI_ERR_ILLEGAL_OPERATION);
    --channel->children;
  });
}
SISCI_EXPORT(SCIUnprepareLocalSegmentForDMA);

void SCIUnprepareRemoteSegmentForDMA(sci_dma_channel_t channel, sci_remote_segment_t segment,
                                     unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(channel != nullptr && segment != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    require(channel->children > 0, SCI_ERR_ILLEGAL_OPERATION);
    --channel->children;
  });
}
SISCI_EXPORT(SCIUnprepareRemoteSegmentForDMA);

void SCIReturnDMAChannel(sci_dma_channel_t channel, sci_error_t* error) {
  call(error, [&] {
    require(channel != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    require(channel->children == 0, SCI_ERR_BUSY);
    delete channel;
  });
}
SISCI_EXPORT(SCIReturnDMAChannel);
