// Messages of this process with itself over one device of a transport.
#pragma once

#include <string>

#include "diagnose/probe/probe.h"
#include "transport/transport.h"

namespace ropewalk::diagnose::probe {

/// What a device says of itself: "200 Gbit/s, PCI 0000:3b:00.0, GUID 0c42a100005f", without what it
/// does not know.
std::string described(const transport::DeviceProperties& properties);

/// Connects the device with itself, moves 16 MiB and compares it, then times long and short
/// messages. Both ends are driven by the calling thread. What goes wrong is the check's outcome,
/// and what the transport warns of its cause: messages that pass all the same are a degraded path.
///
/// @param found what the check says when it passes
/// @param cause the likely reason when it does not, a lack of answers apart
/// @param no_answer the likely reason when nothing comes in 10 s
Check self_messages(transport::Transport& over, int device, const std::string& found,
                    const std::string& cause, const std::string& no_answer);

}  // namespace ropewalk::diagnose::probe
