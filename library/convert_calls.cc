#include <memory>
#include <string>
#include <utility>

#include "convert/convert.h"
#include "formats/base/error.h"
#include "formats/json/json.h"
#include "library/call.h"
#include "library/handles.h"
#include "library/options/settings.h"
#include "library/plan_json.h"

using namespace ingot;
using namespace ingot::library;

int ingot_plan_conversion(const char* source, const char* output, const char* options,
                          ingot_plan** plan) {
  return call([&] {
    require_given(source, "source");
    require_given(output, "output");
    require_given(plan, "plan");
    auto made = std::make_unique<ingot_plan>();
    FlagTable& table = made->table;
    table.command = "convert";
    table.add(FlagGroup::kCommon,
              {required("input", &made->options.input, "source", ValueKind::kCheckpoint),
               required_output("output", &made->job.output, "output", ValueKind::kFolder)});
    declare_target(table, made->options);
    declare_rest(table, made->options, made->job);
    declare_job_options(table, made->job);
    formats::Json settings = settings_of_json(text_or_empty(options));
    settings["input"] = source;
    settings["output"] = output;
    take_settings(settings, table);
    ConversionRequest request = read_conversion(made->options, made->job);
    if (!convert::is_done_without_source({source, made->options.named_family()}, output,
                                         request.recipe, request.plan, execution(made->job))) {
      made->conversion.emplace(plan_conversion(made->options, made->job, std::move(request), true));
      made->json = formats::json_text(plan_json(made->conversion->plan));
    }
    *plan = made.release();
  });
}

void ingot_plan_free(ingot_plan* plan) {
  delete plan;
}

const char* ingot_plan_json(const ingot_plan* plan) {
  return plan == nullptr ? nullptr : plan->json.c_str();
}
