// ropewalk-simgrid: reads a request as JSON on standard input, prints the report on standard
// output.
//
//   {"plan": TEXT or "schedule": TEXT, "topology": TEXT, "bytes": N, "chunk_bytes": N,
//    "most_messages": N, "paced": BOOL, "engine_seconds": N}
//
// (schedule/simulation_request.h). The report is that of schedule/simulate.h. Exit status 0; 2 with
// a message on standard error when the request is wrong; 3 when it is right but not for this
// engine: it would take longer than engine_seconds, or more memory than there is. `ropewalk
// simulate` is the command for people; this program is apart so that the library does not need
// SimGrid.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <new>
#include <string>

#include "core/error.h"
#include "schedule/simulation_request.h"
#include "simgrid/simgrid_engine.h"

namespace {
constexpr int kWrongRequest = 2;
constexpr int kNotForThisEngine = 3;
}  // namespace

int main() {
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  try {
    std::cout << ropewalk::schedule::simulate(ropewalk::schedule::simulation_request(text),
                                              {"simgrid", ropewalk::simgrid::make_simgrid_engine,
                                               ropewalk::simgrid::simgrid_seconds})
              << "\n";
  } catch (const std::bad_alloc&) {
    std::cerr << "memory ran out for the simulation\n";
    return kNotForThisEngine;
  } catch (const ropewalk::Error& error) {
    std::cerr << error.what() << "\n";
    return error.code() == ropewalk::Errc::kTimeout ? kNotForThisEngine : kWrongRequest;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return kWrongRequest;
  }
  return 0;
}
