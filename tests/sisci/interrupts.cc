// Interrupts, plain and with data.
#include <algorithm>
#include <cstring>
#include <memory>

#include "library.h"

using namespace software_sisci;

namespace {

constexpr unsigned kFirstNumber = 0x1000;

std::size_t room(const InterruptEntry& entry, std::size_t slots) {
  const std::uint64_t held = entry.written - entry.read;
  return held >= slots ? 0 : static_cast<std::size_t>(slots - held);
}

InterruptEntry& take_entry(Library& mine, unsigned adapter, unsigned* number, bool data,
                           bool fixed) {
  Fabric& fabric = mine.fabric();
  State& state = fabric.state();
  if (fixed) {
    require(fabric.find_interrupt(mine.host(), adapter, *number, data) == nullptr, SCI_ERR_NOSPC);
  } else {
    *number = kFirstNumber;
    while (fabric.find_interrupt(mine.host(), adapter, *number, data) != nullptr) ++*number;
  }
  InterruptEntry* free = nullptr;
  for (std::size_t i = 0; i < state.interrupts_end && free == nullptr; ++i) {
    if (state.interrupts[i].generation % 2 == 0) free = &state.interrupts[i];
  }
  if (free == nullptr) {
    require(state.interrupts_end < kMaxInterrupts, SCI_ERR_NOSPC);
    free = &state.interrupts[state.interrupts_end++];
  }
  free->process = fabric.process();
  free->host = mine.host();
  free->adapter = adapter;
  free->number = *number;
  free->data = data;
  free->written = 0;
  free->read = 0;
  ++free->generation;
  return *free;
}

template <typename Local>
std::unique_ptr<Local> create(sci_desc_t sd, unsigned adapter, unsigned* number, bool data,
                              unsigned flags) {
  require(sd != nullptr && number != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
  Library& mine = library();
  mine.check_adapter(adapter);
  auto made = std::make_unique<Local>(*sd);
  made->data = data;
  const Fabric::Lock lock(mine.fabric());
  made->entry = &take_entry(mine, adapter, number, data, (flags & SCI_FLAG_FIXED_INTNO) != 0);
  made->generation = made->entry->generation;
  made->number = *number;
  return made;
}

template <typename Local>
void remove(Local* interrupt) {
  require(interrupt != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
  Library& mine = library();
  {
    const Fabric::Lock lock(mine.fabric());
    mine.fabric().free_interrupt(*interrupt->entry);
  }
  mine.fabric().announce();
  mine.forget(*interrupt);
  delete interrupt;
}

template <typename Remote>
void connect(sci_desc_t sd, Remote** interrupt, unsigned node, unsigned adapter, unsigned number,
             bool data) {
  require(sd != nullptr && interrupt != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
  Library& mine = library();
  auto made = std::make_unique<Remote>(*sd);
  made->host = mine.reach(adapter, node);
  made->adapter = adapter;
  const Fabric::Lock lock(mine.fabric());
  made->entry = mine.fabric().find_interrupt(made->host, adapter, number, data);
  require(made->entry != nullptr, SCI_ERR_NO_SUCH_INTNO);
  made->generation = made->entry->generation;
  *interrupt = made.release();
}

template <typename Remote>
void disconnect(Remote* interrupt) {
  require(interrupt != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
  delete interrupt;
}

void check_link(const Library& mine, const RemoteInterrupt& interrupt) {
  const auto settings = mine.settings();
  require(settings->link_up(mine.host(), interrupt.adapter), SCI_ERR_NO_LINK_ACCESS);
  require(settings->link_up(interrupt.host, interrupt.adapter), SCI_ERR_NO_REMOTE_LINK_ACCESS);
}

// Takes the oldest message, or all plain triggers as one.
bool take(Library& mine, LocalInterrupt& interrupt, void* data, unsigned* length) {
  const Fabric::Lock lock(mine.fabric());
  InterruptEntry& entry = *interrupt.entry;
  require(entry.generation == interrupt.generation, SCI_ERR_CANCELLED);
  if (entry.read == entry.written) return false;
  if (!interrupt.data) {
    ++entry.read;
    return true;
  }
  const std::size_t slot = entry.read % kInterruptSlots;
  require(*length >= entry.lengths[slot], SCI_ERR_OUT_OF_RANGE);
  *length = entry.lengths[slot];
  std::memcpy(data, entry.messages[slot].data(), *length);
  ++entry.read;
  return true;
}

}  // namespace

Looked LocalInterrupt::look(Library& mine) {
  if (callback == nullptr && data_callback == nullptr) return Looked::kNothing;
  std::array<char, kInterruptBytes> message;
  unsigned length = kInterruptBytes;
  try {
    if (!take(mine, *this, message.data(), &length)) return Looked::kNothing;
  } catch (const Failure&) {
    return Looked::kNothing;
  }
  if (callback != nullptr) {
    return called(callback(arg, static_cast<sci_local_interrupt_t>(this), SCI_ERR_OK));
  }
  return called(data_callback(arg, static_cast<sci_local_data_interrupt_t>(this), message.data(),
                              length, SCI_ERR_OK));
}

void SCICreateInterrupt(sci_desc_t sd, sci_local_interrupt_t* interrupt, unsigned int adapter,
                        unsigned int* number, sci_cb_interrupt_t callback, void* arg,
                        unsigned int flags, sci_error_t* error) {
  call(error, [&] {
    require(interrupt != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    const bool calls = (flags & SCI_FLAG_USE_CALLBACK) != 0;
    require(!calls || callback != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    auto made = create<sci_local_interrupt>(sd, adapter, number, false, flags);
    made->callback = calls ? callback : nullptr;
    made->arg = arg;
    *interrupt = made.release();
    library().watch(**interrupt);
  });
}
SISCI_EXPORT(SCICreateInterrupt);

void SCICreateDataInterrupt(sci_desc_t sd, sci_local_data_interrupt_t* interrupt,
                            unsigned int adapter, unsigned int* number,
                            sci_cb_data_interrupt_t callback, void* arg, unsigned int flags,
                            sci_error_t* error) {
  call(error, [&] {
    require(interrupt != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    const bool calls = (flags & SCI_FLAG_USE_CALLBACK) != 0;
    require(!calls || callback != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    auto made = create<sci_local_data_interrupt>(sd, adapter, number, true, flags);
    made->data_callback = calls ? callback : nullptr;
    made->arg = arg;
    *interrupt = made.release();
    library().watch(**interrupt);
  });
}
SISCI_EXPORT(SCICreateDataInterrupt);

void SCIRemoveInterrupt(sci_local_interrupt_t interrupt, unsigned int /*flags*/,
                        sci_error_t* error) {
  call(error, [&] { remove(interrupt); });
}
SISCI_EXPORT(SCIRemoveInterrupt);

void SCIRemoveDataInterrupt(sci_local_data_interrupt_t interrupt, unsigned int /*flags*/,
                            sci_error_t* error) {
  call(error, [&] { remove(interrupt); });
}
SISCI_EXPORT(SCIRemoveDataInterrupt);

void SCIWaitForInterrupt(sci_local_interrupt_t interrupt, unsigned int timeout,
                         unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(interrupt != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    require(interrupt->callback == nullptr, SCI_ERR_ILLEGAL_OPERATION);
    Library& mine = library();
    require(wait_for(mine, timeout, [&] { return take(mine, *interrupt, nullptr, nullptr); }),
            SCI_ERR_TIMEOUT);
  });
}
SISCI_EXPORT(SCIWaitForInterrupt);

void SCIWaitForDataInterrupt(sci_local_data_interrupt_t interrupt, void* data, unsigned int* length,
                             unsigned int timeout, unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(interrupt != nullptr && data != nullptr && length != nullptr,
            SCI_ERR_ILLEGAL_PARAMETER);
    require(interrupt->data_callback == nullptr, SCI_ERR_ILLEGAL_OPERATION);
    Library& mine = library();
    require(wait_for(mine, timeout, [&] { return take(mine, *interrupt, data, length); }),
            SCI_ERR_TIMEOUT);
  });
}
SISCI_EXPORT(SCIWaitForDataInterrupt);

void SCIConnectInterrupt(sci_desc_t sd, sci_remote_interrupt_t* interrupt, unsigned int nodeId,
                         unsigned int adapter, unsigned int number, unsigned int /*timeout*/,
                         unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] { connect(sd, interrupt, nodeId, adapter, number, false); });
}
SISCI_EXPORT(SCIConnectInterrupt);

void SCIConnectDataInterrupt(sci_desc_t sd, sci_remote_data_interrupt_t* interrupt,
                             unsigned int nodeId, unsigned int adapter, unsigned int number,
                             unsigned int /*timeout*/, unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] { connect(sd, interrupt, nodeId, adapter, number, true); });
}
SISCI_EXPORT(SCIConnectDataInterrupt);

void SCIDisconnectInterrupt(sci_remote_interrupt_t interrupt, unsigned int /*flags*/,
                            sci_error_t* error) {
  call(error, [&] { disconnect(interrupt); });
}
SISCI_EXPORT(SCIDisconnectInterrupt);

void SCIDisconnectDataInterrupt(sci_remote_data_interrupt_t interrupt, unsigned int /*flags*/,
                                sci_error_t* error) {
  call(error, [&] { disconnect(interrupt); });
}
SISCI_EXPORT(SCIDisconnectDataInterrupt);

void SCITriggerInterrupt(sci_remote_interrupt_t interrupt, unsigned int /*flags*/,
                         sci_error_t* error) {
  call(error, [&] {
    require(interrupt != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    Library& mine = library();
    check_link(mine, *interrupt);
    {
      const Fabric::Lock lock(mine.fabric());
      require(interrupt->entry->generation == interrupt->generation, SCI_ERR_NOT_CONNECTED);
      ++interrupt->entry->written;
    }
    mine.fabric().announce();
  });
}
SISCI_EXPORT(SCITriggerInterrupt);

void SCITriggerDataInterrupt(sci_remote_data_interrupt_t interrupt, void* data, unsigned int length,
                             unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(interrupt != nullptr && data != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    Library& mine = library();
    const auto settings = mine.settings();
    require(length <= std::min(settings->data_interrupt_bytes, kInterruptBytes),
            SCI_ERR_OUT_OF_RANGE);
    check_link(mine, *interrupt);
    {
      const Fabric::Lock lock(mine.fabric());
      InterruptEntry& entry = *interrupt->entry;
      require(entry.generation == interrupt->generation, SCI_ERR_NOT_CONNECTED);
      require(room(entry, std::min(settings->data_interrupt_slots, kInterruptSlots)) > 0,
              SCI_ERR_NOSPC);
      const std::size_t slot = entry.written % kInterruptSlots;
      entry.lengths[slot] = length;
      std::memcpy(entry.messages[slot].data(), data, length);
      ++entry.written;
    }
    mine.fabric().announce();
  });
}
SISCI_EXPORT(SCITriggerDataInterrupt);
