/* The C interface as a program in C calls it. Usage: ingot_c_test CHECKPOINT FOLDER; the checkpoint
 * is examples/tiny-v32. Every failed claim is printed; the exit code is 1 then. */
#include <ingot/ingot.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int n_failed;
#define CLAIM(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      printf("%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, last_fault().text); \
      n_failed++;                                                                            \
    }                                                                                        \
  } while (0)

static struct ingot_error last_fault(void) {
  struct ingot_error error = {.size = sizeof error};
  ingot_last_error(&error);
  return error;
}

static size_t index_of(const ingot_checkpoint* checkpoint, const char* name) {
  struct ingot_tensor info = {.size = sizeof info};
  for (size_t i = 0; i < ingot_tensor_count(checkpoint); i++) {
    CLAIM(ingot_tensor_info(checkpoint, i, &info) == INGOT_OK);
    if (strcmp(info.name, name) == 0) return i;
  }
  printf("no tensor %s\n", name);
  exit(1);
}

static float e4m3(unsigned char code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float value =
      exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);
  return code & 128 ? -value : value;
}

static void stored_bytes_are_those_of_the_file(const ingot_checkpoint* checkpoint) {
  unsigned char ours[512], theirs[512];
  for (size_t i = 0; i < ingot_tensor_count(checkpoint); i += 17) {
    struct ingot_part part = {.size = sizeof part};
    CLAIM(ingot_part_info(checkpoint, i, 0, &part) == INGOT_OK);
    const size_t n = part.n_bytes < sizeof ours ? (size_t)part.n_bytes : sizeof ours;
    const uint64_t from = part.n_bytes - n;
    CLAIM(ingot_read_stored(checkpoint, i, 0, from, ours, n) == INGOT_OK);
    FILE* file = fopen(part.path, "rb");
    CLAIM(file != NULL && fseek(file, (long)(part.offset + from), SEEK_SET) == 0);
    CLAIM(fread(theirs, 1, n, file) == n && memcmp(ours, theirs, n) == 0);
    fclose(file);
  }
  CLAIM(ingot_read_stored(checkpoint, 0, 0, 1u << 30, ours, 1) == INGOT_INVALID_ARGUMENT);
}

/* Codes times the scale of their block of 128 x 128, computed here. */
static void blocks_are_decoded(const ingot_checkpoint* checkpoint) {
  const size_t i = index_of(checkpoint, "model.layers.1.self_attn.q_b_proj.weight");
  struct ingot_tensor info = {.size = sizeof info};
  struct ingot_part codes = {.size = sizeof codes}, scales = {.size = sizeof scales};
  CLAIM(ingot_tensor_info(checkpoint, i, &info) == INGOT_OK);
  CLAIM(strcmp(info.scheme, "fp8-block") == 0 && info.layer == 1 && info.expert == -1);
  CLAIM(info.n_dims == 2 && info.n_parts == 2);
  CLAIM(ingot_part_info(checkpoint, i, 0, &codes) == INGOT_OK);
  CLAIM(ingot_part_info(checkpoint, i, 1, &scales) == INGOT_OK);
  CLAIM(strcmp(codes.dtype, "F8_E4M3") == 0 && strcmp(scales.kind, "scale") == 0);
  CLAIM(strcmp(scales.dtype, "F32") == 0);
  const size_t rows = (size_t)info.shape[0], cols = (size_t)info.shape[1];
  unsigned char* code = malloc((size_t)codes.n_bytes);
  float* scale = malloc((size_t)scales.n_bytes);
  float* values = malloc(rows * cols * sizeof(float));
  CLAIM(ingot_read_stored(checkpoint, i, 0, 0, code, codes.n_bytes) == INGOT_OK);
  CLAIM(ingot_read_stored(checkpoint, i, 1, 0, scale, scales.n_bytes) == INGOT_OK);
  CLAIM(ingot_read_decoded(checkpoint, i, values, rows * cols, 2) == INGOT_OK);
  size_t n_wrong = 0;
  for (size_t row = 0; row < rows; row++)
    for (size_t col = 0; col < cols; col++) {
      const float of_block = scale[row / 128 * (size_t)scales.shape[1] + col / 128];
      n_wrong += values[row * cols + col] != e4m3(code[row * cols + col]) * of_block;
    }
  CLAIM(n_wrong == 0);
  CLAIM(ingot_read_decoded(checkpoint, i, values, rows, 2) == INGOT_INVALID_ARGUMENT);
  CLAIM(strcmp(last_fault().tensor, info.name) == 0);
  free(code);
  free(scale);
  free(values);
}

static void faults_have_code_file_and_words(const char* folder) {
  ingot_checkpoint* none = NULL;
  CLAIM(ingot_open(folder, NULL, &none) != INGOT_OK && none == NULL);
  CLAIM(last_fault().code == INGOT_NOT_FOUND && strcmp(last_fault().code_name, "not-found") == 0);
  CLAIM(strstr(last_fault().file, folder) != NULL && last_fault().message[0] != '\0');
  CLAIM(ingot_open(NULL, NULL, &none) == INGOT_INVALID_ARGUMENT);
  CLAIM(ingot_open(folder, NULL, NULL) == INGOT_INVALID_ARGUMENT);
}

static void options_are_named_as_flags(const char* path) {
  ingot_checkpoint* checkpoint = NULL;
  CLAIM(ingot_open(path, "{\"family\": \"generic\"}", &checkpoint) == INGOT_OK);
  struct ingot_tensor info = {.size = sizeof info};
  CLAIM(ingot_tensor_info(checkpoint, index_of(checkpoint, "lm_head.weight"), &info) == INGOT_OK);
  CLAIM(strcmp(info.role, "other") == 0);
  ingot_close(checkpoint);
  checkpoint = NULL;
  CLAIM(ingot_open(path, "{\"famly\": \"generic\"}", &checkpoint) == INGOT_INVALID_ARGUMENT);
  CLAIM(strstr(last_fault().message, "did you mean family?") != NULL);
  CLAIM(ingot_open(path, "{\"family\": true}", &checkpoint) == INGOT_INVALID_ARGUMENT);
  CLAIM(ingot_open(path, "{\"family\": \"a\", \"family-file\": \"b\"}", &checkpoint) ==
        INGOT_INVALID_ARGUMENT);
  CLAIM(ingot_open(path, "[]", &checkpoint) == INGOT_INVALID_ARGUMENT && checkpoint == NULL);
}

/* A caller that was compiled with an older header has shorter structs. */
static void structs_are_filled_as_far_as_they_go(const ingot_checkpoint* checkpoint) {
  struct ingot_tensor info;
  memset(&info, 0x5a, sizeof info);
  info.size = offsetof(struct ingot_tensor, shape);
  CLAIM(ingot_tensor_info(checkpoint, 0, &info) == INGOT_OK);
  CLAIM(info.name[0] != '\0' && info.n_parts == (size_t)0x5a5a5a5a5a5a5a5a);
  info.size = 0;
  CLAIM(ingot_tensor_info(checkpoint, 0, &info) == INGOT_INVALID_ARGUMENT);
  info.size = sizeof info;
  CLAIM(ingot_tensor_info(checkpoint, 1u << 30, &info) == INGOT_INVALID_ARGUMENT);
}

static void count_calls(void* context, const char* phase, uint64_t done, uint64_t total) {
  CLAIM(phase != NULL && (total == 0 || done <= total));
  ++*(int*)context;
}

/* The script compares the output with that of the command line. */
static void conversions_are_planned_and_run(const char* path, const char* output) {
  const char* options =
      "{\"to\": \"int8\", \"rules\": [{\"match\": \"role:attention\", \"scheme\": \"bf16\"}],"
      " \"mtp\": \"drop\", \"max-shard-size\": \"5MB\"}";
  ingot_plan* plan = NULL;
  CLAIM(ingot_plan_conversion(path, output, "{\"to\": \"int9\"}", &plan) == INGOT_INVALID_ARGUMENT);
  CLAIM(ingot_plan_conversion(path, output, "{\"tp-fit\": \"pad\"}", &plan) ==
        INGOT_INVALID_ARGUMENT);
  CLAIM(strstr(last_fault().message, "no effect") != NULL && plan == NULL);
  CLAIM(ingot_plan_conversion(path, output, options, &plan) == INGOT_OK);
  CLAIM(strstr(ingot_plan_json(plan), "\"int8-channel\"") != NULL);
  int n_calls = 0, stop = 1;
  struct ingot_run run = {
      .size = sizeof run, .progress = count_calls, .context = &n_calls, .stop = &stop};
  CLAIM(ingot_plan_run(plan, &run, NULL) == INGOT_INTERRUPTED);
  ingot_plan_free(plan);
  CLAIM(ingot_plan_conversion(path, output, options, &plan) == INGOT_OK);
  stop = 0;
  char* report = NULL;
  CLAIM(ingot_plan_run(plan, &run, &report) == INGOT_OK && n_calls > 0);
  CLAIM(report != NULL && strstr(report, "\"already_done\": false") != NULL);
  ingot_free_text(report);
  CLAIM(ingot_command("list", "{\"table\": \"schemes\"}", NULL, &report) == INGOT_OK);
  CLAIM(strstr(report, "\"nvfp4\"") != NULL);
  ingot_free_text(report);
  CLAIM(ingot_command("list", "{\"table\": \"none\"}", NULL, &report) == INGOT_INVALID_ARGUMENT);
  CLAIM(strstr(report, "\"code\": \"invalid-argument\"") != NULL);
  ingot_free_text(report);
  CLAIM(ingot_command("help", NULL, NULL, NULL) == INGOT_UNSUPPORTED);
  CLAIM(ingot_command("convert", NULL, NULL, NULL) == INGOT_INVALID_ARGUMENT);
  CLAIM(ingot_plan_run(plan, NULL, NULL) == INGOT_EXISTS);
  ingot_plan_free(plan);
}

/* Appends to a text; exits where there is no room. */
static void append(char* text, size_t size, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const size_t used = strlen(text);
  const int n = vsnprintf(text + used, size - used, format, arguments);
  va_end(arguments);
  if (n < 0 || (size_t)n >= size - used) exit(2);
}

static char* shapes_of(const ingot_checkpoint* checkpoint) {
  const size_t size = 1u << 20;
  char* text = calloc(size, 1);
  append(text, size, "{");
  for (size_t i = 0; i < ingot_tensor_count(checkpoint); i++) {
    struct ingot_part part = {.size = sizeof part};
    for (size_t p = 0; ingot_part_info(checkpoint, i, p, &part) == INGOT_OK; p++) {
      append(text, size, "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [", i + p > 0 ? ", " : "",
             part.name, part.dtype);
      for (size_t d = 0; d < part.n_dims; d++)
        append(text, size, "%s%llu", d > 0 ? ", " : "", (unsigned long long)part.shape[d]);
      append(text, size, "]}");
    }
  }
  append(text, size, "}");
  return text;
}

static int put(ingot_encoder* encoder, const struct ingot_part* part, const char* dtype,
               const uint64_t* shape, size_t n_dims, const void* bytes, size_t* n_made) {
  return ingot_encoder_put_array(encoder, part->name, dtype, shape, n_dims, bytes, part->n_bytes,
                                 n_made);
}

/* The values are those of ingot_read_decoded(), rounded to BF16. */
static void tensors_are_encoded_in_memory(const char* path, const ingot_checkpoint* checkpoint) {
  char name[512], config[8192] = {0};
  snprintf(name, sizeof name, "%s/config.json", path);
  FILE* file = fopen(name, "rb");
  CLAIM(file != NULL && fread(config, 1, sizeof config - 1, file) > 0);
  fclose(file);
  char* shapes = shapes_of(checkpoint);
  ingot_plan* plan = NULL;
  ingot_encoder *encoder = NULL, *other = NULL;
  CLAIM(ingot_plan_shapes(config, "{\"x\": {\"dtype\": \"BF16\", \"shape\": [2]}}", NULL, &plan) ==
        INGOT_UNKNOWN_TENSOR);
  CLAIM(ingot_plan_shapes(config, "{\"x\": {\"dtype\": \"BF17\", \"shape\": [2]}}", NULL, &plan) ==
        INGOT_CORRUPT);
  CLAIM(ingot_plan_shapes(config, shapes, "{\"tp\": 2}", &plan) == INGOT_UNSUPPORTED);
  CLAIM(ingot_plan_shapes(config, shapes, "{\"to\": \"bf16\"}", &plan) == INGOT_OK);
  CLAIM(ingot_plan_run(plan, NULL, NULL) == INGOT_UNSUPPORTED);
  CLAIM(ingot_encoder_new(plan, &encoder) == INGOT_OK);
  CLAIM(ingot_encoder_new(plan, &other) == INGOT_EXISTS && other == NULL);
  const size_t i = index_of(checkpoint, "model.layers.1.self_attn.q_b_proj.weight");
  struct ingot_tensor info = {.size = sizeof info};
  CLAIM(ingot_tensor_info(checkpoint, i, &info) == INGOT_OK);
  const size_t n_values = (size_t)(info.shape[0] * info.shape[1]);
  float* values = malloc(n_values * sizeof *values);
  CLAIM(ingot_read_decoded(checkpoint, i, values, n_values, 1) == INGOT_OK);
  size_t n_made = 9;
  for (size_t p = 0; p < 2; p++) {
    struct ingot_part part = {.size = sizeof part};
    CLAIM(ingot_part_info(checkpoint, i, p, &part) == INGOT_OK);
    void* bytes = malloc((size_t)part.n_bytes);
    CLAIM(ingot_read_stored(checkpoint, i, p, 0, bytes, part.n_bytes) == INGOT_OK);
    const uint64_t turned[] = {part.shape[1], part.shape[0]},
                   wider[] = {part.shape[0], part.shape[1], 1};
    CLAIM(put(encoder, &part, "F16", part.shape, 2, bytes, &n_made) == INGOT_DTYPE_MISMATCH);
    CLAIM(put(encoder, &part, "I8", part.shape, 2, bytes, &n_made) == INGOT_DTYPE_MISMATCH);
    CLAIM(put(encoder, &part, "BF17", part.shape, 2, bytes, &n_made) == INGOT_DTYPE_MISMATCH);
    CLAIM(put(encoder, &part, part.dtype, turned, 2, bytes, &n_made) == INGOT_SHAPE_MISMATCH);
    CLAIM(put(encoder, &part, part.dtype, wider, 3, bytes, &n_made) == INGOT_SHAPE_MISMATCH);
    CLAIM(strcmp(last_fault().tensor, part.name) == 0);
    /* Codes as the words that they are; scales without a word about their form. */
    CLAIM((p == 0
               ? put(encoder, &part, "U8", part.shape, 2, bytes, &n_made)
               : ingot_encoder_put(encoder, part.name, bytes, part.n_bytes, &n_made)) == INGOT_OK);
    CLAIM(n_made == p);
    free(bytes);
  }
  struct ingot_encoded made = {.size = sizeof made};
  CLAIM(ingot_encoder_made(encoder, 0, &made) == INGOT_OK && strcmp(made.name, info.name) == 0);
  CLAIM(strcmp(made.dtype, "BF16") == 0 && made.n_bytes == 2 * n_values);
  size_t n_far = 0;
  for (size_t k = 0; k < n_values; k++) {
    const uint32_t word = (uint32_t)((const uint16_t*)made.bytes)[k] << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    n_far += fabsf(value - values[k]) > fabsf(values[k]) / 256;
  }
  CLAIM(n_far == 0);
  CLAIM(ingot_encoder_made(encoder, 1, &made) == INGOT_INVALID_ARGUMENT);
  CLAIM(ingot_encoder_finish(encoder) == INGOT_MISSING_TENSOR);
  ingot_encoder_free(encoder);
  ingot_plan_free(plan);
  free(values);
  free(shapes);
}

/* 0 in the child: the call failed at once, and said so. */
static void a_forked_child_gets_an_error(const char* path, const ingot_checkpoint* checkpoint) {
  const pid_t child = fork();
  if (child == 0) {
    ingot_checkpoint* other = NULL;
    float value = 0;
    alarm(20);
    if (ingot_open(path, NULL, &other) != INGOT_UNSUPPORTED || other != NULL) _exit(1);
    if (ingot_read_decoded(checkpoint, 0, &value, 1, 0) != INGOT_UNSUPPORTED) _exit(2);
    _exit(strstr(last_fault().message, "fork") == NULL ? 3 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CLAIM(status == 0);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  CLAIM(ingot_abi_version() == INGOT_ABI_VERSION && ingot_version()[0] != '\0');
  CLAIM(last_fault().code == INGOT_OK && last_fault().text[0] == '\0');
  ingot_checkpoint* checkpoint = NULL;
  CLAIM(ingot_open(argv[1], NULL, &checkpoint) == INGOT_OK);
  CLAIM(ingot_tensor_count(checkpoint) > 100);
  stored_bytes_are_those_of_the_file(checkpoint);
  blocks_are_decoded(checkpoint);
  structs_are_filled_as_far_as_they_go(checkpoint);
  faults_have_code_file_and_words(argv[2]);
  options_are_named_as_flags(argv[1]);
  conversions_are_planned_and_run(argv[1], argv[2]);
  tensors_are_encoded_in_memory(argv[1], checkpoint);
  a_forked_child_gets_an_error(argv[1], checkpoint);
  ingot_close(checkpoint);
  ingot_close(NULL);
  if (n_failed == 0) printf("every claim holds\n");
  return n_failed == 0 ? 0 : 1;
}
