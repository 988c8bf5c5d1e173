/* A job of the C interface by itself: refused_job convert SOURCE OUTPUT OPTIONS, or check and verify. Prints
 * the code and the message of a refusal, a line each; nothing where there is none. */
#include <ingot/ingot.h>
#include <stdio.h>
#include <string.h>

static int convert(char** words) {
  ingot_plan* plan = NULL;
  int code = ingot_plan_conversion(words[0], words[1], words[2], &plan);
  if (code == INGOT_OK) code = ingot_plan_run(plan, NULL, NULL);
  ingot_plan_free(plan);
  return code;
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  char* report = NULL;
  int code = INGOT_OK;
  if (strcmp(argv[1], "convert") == 0) code = convert(argv + 2);
  if (strcmp(argv[1], "check") == 0) code = ingot_check(argv[2], argv[4], NULL, &report);
  if (strcmp(argv[1], "verify") == 0) code = ingot_verify(argv[2], argv[3], argv[4], NULL, &report);
  ingot_free_text(report);
  if (code == INGOT_OK) return 0;
  struct ingot_error error = {.size = sizeof error};
  ingot_last_error(&error);
  printf("%s\n%s\n", error.code_name, error.message);
  return 0;
}
