/* Plans an all-reduce for a named machine, checks the plan, and prints its rate.
 *
 * Run: ./plan dgx-a100, or with a file as `ropewalk topo --json` writes it: ./plan machine.json */
#include <ropewalk/plan.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(rwResult_t result) {
  if (result == rwSuccess) return;
  fprintf(stderr, "%s: %s\n", rwGetErrorString(result), rwGetLastError(NULL));
  exit(EXIT_FAILURE);
}

int main(int count, char** arguments) {
  const char* name = count > 1 ? arguments[1] : "dgx-a100";
  rwTopology_t machine = NULL;
  if (strstr(name, ".json") != NULL) {
    check(rwTopologyReadFile(name, &machine));
  } else {
    check(rwTopologySynthetic(name, &machine));
  }
  rwPlan_t plan = NULL;
  check(rwPlanMake(machine, "{\"collective\": \"all_reduce\"}", &plan));
  check(rwTopologyFree(machine)); /* the plan keeps a copy of what it needs */

  const double bytes[] = {1e3, 1e6, 1e9};
  double microseconds[3];
  check(rwPlanTimes(plan, bytes, 3, microseconds));
  for (int i = 0; i < 3; ++i) printf("%g bytes: %.4g us\n", bytes[i], microseconds[i]);

  char* text = NULL;
  check(rwPlanCheck(plan, &text));
  printf("%s\n", text);
  rwFreeText(text);
  check(rwScheduleFromPlan(plan, &text)); /* for rwCommUseSchedule, on all ranks */
  printf("a schedule of %zu characters\n", strlen(text));
  rwFreeText(text);
  check(rwPlanFree(plan));
  return EXIT_SUCCESS;
}
