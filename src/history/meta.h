/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What is told about a file, the same in all answers. */

#include <jansson.h>

#include "hfs.h"

/*
 * {"type","size","mode":<permission bits>,"uid","gid","modified_at","inode","links","link_target"?,
 *  "device":{"major","minor"}?}
 * A link whose target cannot be read has none. NULL: no memory.
 */
json_t *meta_json(struct hfs *fs, const struct hinode *i);

/* {"journal_transactions":N,"warnings":[...]} into obj; warnings only when there are any. */
int meta_add_image(json_t *obj, const struct hfs *fs);
int meta_add_warning(json_t *obj, const char *word);
