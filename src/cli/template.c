/* SPDX-License-Identifier: Apache-2.0 */
#include "template.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "mem.h"
#include "output.h"
#include "text.h"

#define PACKAGES_MAX 65536

const char *template_shown(const json_t *tmpl) {
        const char *name = json_string_value(json_array_get(json_object_get(tmpl, "names"), 0));

        return name ? name : member_str(tmpl, "digest");
}

/* " --packages a,b"; "" for none. */
static char *packages_of(const json_t *source) {
        _cleanup_buf_ struct buf list = BUF_INIT(PACKAGES_MAX);
        const json_t *one;
        size_t i;

        json_array_foreach(json_object_get(source, "requested"), i, one)
                (void) buf_printf(&list, "%s%s", i ? "," : " --packages ", json_string_value(one) ? json_string_value(one) : "");
        return mem_dup(list.len ? buf_str(&list) : "");
}

char *template_renew(const json_t *tmpl) {
        const json_t *names = json_object_get(tmpl, "names"), *source = json_object_get(tmpl, "source");
        const char *kind = member_str(source, "kind");

        if (!str_eq(member_str(tmpl, "agent"), "other"))
                return NULL;
        const char *name = json_array_size(names) > 0 ? template_shown(tmpl) : "NAME";
        if (str_eq(kind, "sandbox"))
                return mem_printf("cspace template publish SANDBOX %s, of a sandbox of a template that has it", name);
        _cleanup_free_ char *packages = str_eq(kind, "tar") ? mem_dup(" --tar FILE") : packages_of(source);
        _cleanup_free_ char *todo = mem_printf("cspace template build%s %s", packages, name);
        return text_safe(todo);
}

char *template_digest(struct client *c, const char *ref) {
        _cleanup_free_ char *safe = client_escape(ref), *target = mem_printf("/v1/templates/%s", safe);
        _cleanup_json_ json_t *tmpl = NULL;
        struct api_error e;

        if (client_call(c, "GET", target, NULL, 0, &tmpl, &e) < 0)
                return NULL;
        const char *digest = member_str(tmpl, "digest");
        return *digest ? mem_dup(digest) : NULL;
}

void template_tell_moved(const char *ref, const char *before, const char *now) {
        if (before && !str_eq(before, now))
                cli_note("%s was %.12s until now; that template goes with its last sandbox, unless it has another name", ref, before);
}
