/* Lists the tensors of a checkpoint, and converts it. Usage: convert SOURCE OUTPUT SCHEME
 *   cc -I include examples/c/convert.c -L build/release/library -lingot -o convert */
#include <ingot/ingot.h>
#include <signal.h>
#include <stdio.h>

static volatile int stop;

static void on_signal(int number) {
  stop = number;
}

static void show(void* context, const char* phase, uint64_t done, uint64_t total) {
  (void)context;
  if (total > 0) fprintf(stderr, "\r%s%3d%%", phase, (int)(100 * done / total));
}

static int fail(void) {
  struct ingot_error error = {.size = sizeof error};
  ingot_last_error(&error);
  fprintf(stderr, "error (%s): %s\n", error.code_name, error.text);
  return 2;
}

static int list(const char* source) {
  ingot_checkpoint* checkpoint = NULL;
  if (ingot_open(source, NULL, &checkpoint) != INGOT_OK) return fail();
  for (size_t i = 0; i < ingot_tensor_count(checkpoint); i++) {
    struct ingot_tensor tensor = {.size = sizeof tensor};
    if (ingot_tensor_info(checkpoint, i, &tensor) != INGOT_OK) return fail();
    printf("%-12s %-12s %s\n", tensor.role, tensor.scheme, tensor.name);
  }
  ingot_close(checkpoint);
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: convert SOURCE OUTPUT SCHEME\n");
    return 2;
  }
  if (list(argv[1]) != 0) return 2;
  char options[128];
  snprintf(options, sizeof options, "{\"to\": \"%s\", \"max-shard-size\": \"5GB\"}", argv[3]);
  ingot_plan* plan = NULL;
  if (ingot_plan_conversion(argv[1], argv[2], options, &plan) != INGOT_OK) return fail();
  signal(SIGINT, on_signal);
  const struct ingot_run run = {.size = sizeof run, .progress = show, .stop = &stop};
  char* report = NULL;
  if (ingot_plan_run(plan, &run, &report) != INGOT_OK) return fail();
  printf("%s", report);
  ingot_free_text(report);
  ingot_plan_free(plan);
  return 0;
}
