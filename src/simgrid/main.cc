// ropewalk-simgrid: reads a request as JSON on standard input, prints the report on standard
// output.
//
//   {"subject": TEXT, "subject_name": TEXT, "topology": TEXT, "topology_name": TEXT,
//    "bytes": N, "chunk_bytes": N, "most_messages": N, "paced": BOOL}
//
// The report is that of schedule/simulate.h. Exit status 0; 2 with a message on standard error when
// the request is wrong. `ropewalk simulate` is the command for people; this program is apart so
// that the library does not need SimGrid.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>

#include "core/error.h"
#include "schedule/simulation_request.h"
#include "simgrid/simgrid_engine.h"

int main() {
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  try {
    std::cout << ropewalk::schedule::simulate(ropewalk::schedule::simulation_request(text),
                                              "simgrid", ropewalk::simgrid::make_simgrid_engine)
              << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
  return 0;
}
