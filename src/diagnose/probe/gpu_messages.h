// Whether a device of a transport takes memory of this machine's GPUs.
#pragma once

#include <string>

#include "diagnose/probe/probe.h"
#include "transport/messaging/gpus.h"

namespace ropewalk::diagnose::probe {

/// What came of trials on each GPU, so that what NCCL would find is known before.
///
/// @param device its name
/// @param cause the likely reason when one failed
Check gpu_messages(const transport::messaging::GpuTrials& trials, const std::string& device,
                   const std::string& cause);

}  // namespace ropewalk::diagnose::probe
