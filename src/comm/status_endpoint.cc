#include "comm/status_endpoint.h"

#include <cstddef>
#include <memory>
#include <string>

#include "bootstrap/service.h"
#include "comm/call_report.h"
#include "comm/communicator.h"
#include "core/log.h"

namespace ropewalk::comm {

namespace {

std::string reports(monitor::ServedComms<Communicator>& shared, std::size_t calls) {
  std::string lines;
  const Lock lock(shared.mutex);
  for (const Communicator* comm : shared.comms) {
    lines += call_report(*comm, calls);
    lines += '\n';
  }
  return lines;
}

void write_reports(monitor::ServedComms<Communicator>& shared) {
  const Lock lock(shared.mutex);
  for (const Communicator* comm : shared.comms) {
    const std::string pattern = comm->config().text(Setting::kTraceFile);
    if (!pattern.empty()) write_call_report(*comm, pattern);
  }
}

}  // namespace

StatusEndpoint::StatusEndpoint(bootstrap::Context& context) : service_(context) {}

void StatusEndpoint::add(const Communicator& comm) noexcept {
  try {
    service_.add(comm, [&](bootstrap::Service& service,
                           const std::shared_ptr<monitor::ServedComms<Communicator>>& shared) {
      return std::make_shared<StatusSocket>(
          service, [shared](std::size_t calls) { return reports(*shared, calls); },
          comm.config().text(Setting::kTraceSignal), [shared] { write_reports(*shared); });
    });
  } catch (const std::exception& error) {
    log::warn("rank {}: `ropewalk status` cannot ask this process: {}", comm.rank(), error.what());
  }
}

void StatusEndpoint::remove(const Communicator& comm) noexcept {
  try {
    service_.remove(comm);
  } catch (const std::exception& error) {
    log::warn("the end of the endpoint of `ropewalk status`: {}", error.what());
  }
}

}  // namespace ropewalk::comm
