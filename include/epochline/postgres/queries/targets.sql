-- Target tables: their catalog entries, claims and before-images.

-- name: claim_target
-- Claim a target for a pipeline, unless it is claimed.
INSERT INTO epochline.target (schema_name, table_name, pipeline, sink)
VALUES (%(schema)s, %(table)s, %(pipeline)s, %(sink)s) ON CONFLICT DO NOTHING

-- name: pipeline_of_target
-- The pipeline that claimed a target.
SELECT pipeline FROM epochline.target WHERE schema_name = %(schema)s AND table_name = %(table)s

-- name: claimed_targets
-- The targets that a pipeline claimed.
SELECT schema_name, table_name FROM epochline.target WHERE pipeline = %(pipeline)s ORDER BY schema_name, table_name

-- name: release_targets
-- Release the targets of a pipeline.
DELETE FROM epochline.target WHERE pipeline = %(pipeline)s

-- name: claims_that_share_rows
-- Claims of other pipelines, and other targets that are declared with this one, on tables that share rows with it: its
-- ancestors, its partitions and heirs, and their other ancestors. A table that no longer has the name of its claim is
-- known by its oid.
WITH RECURSIVE down AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = %(table)s
    UNION SELECT i.inhrelid FROM pg_inherits i JOIN down ON i.inhparent = down.oid
), related AS (
    SELECT oid FROM down UNION SELECT i.inhparent FROM pg_inherits i JOIN related ON i.inhrelid = related.oid
), claims AS (
    SELECT schema_name, table_name, pipeline, relation FROM epochline.target
    WHERE pipeline <> %(pipeline)s AND schema_name <> ''
    UNION ALL
    SELECT schema_name, table_name, %(pipeline)s, NULL
    FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS declared (schema_name, table_name)
)
SELECT k.pipeline, k.schema_name, k.table_name FROM claims k
LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace)
       ON n.nspname = k.schema_name AND c.relname = k.table_name
JOIN related r ON r.oid = coalesce(c.oid, k.relation)
WHERE (k.schema_name, k.table_name) <> (%(schema)s, %(table)s)
ORDER BY 1, 2, 3 LIMIT 1

-- name: claimed_relation
-- The table that a pipeline's claim is of and the one that has its name now; the same of its table of deleted keys.
SELECT t.relation, c.oid AS now, t.deleted_keys, d.oid AS deleted_now,
       coalesce(t.accepted_epoch, 0) AS accepted_epoch,
       has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT') AS may_read,
       (SELECT format('%%I.%%I', m.nspname, k.relname) FROM pg_class k JOIN pg_namespace m ON m.oid = k.relnamespace
        WHERE k.oid = t.relation AND k.relkind IN ('r', 'p')) AS moved_to
FROM (SELECT %(schema)s::text AS schema_name, %(table)s::text AS table_name) w
LEFT JOIN epochline.target t
       ON (t.schema_name, t.table_name, t.pipeline) = (w.schema_name, w.table_name, %(pipeline)s)
LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace)
       ON n.nspname = w.schema_name AND c.relname = w.table_name AND c.relkind IN ('r', 'p')
LEFT JOIN (pg_class d JOIN pg_namespace o ON o.oid = d.relnamespace)
       ON o.nspname = 'epochline' AND d.relname = %(deleted_keys)s

-- name: remember_relation
-- Keep which table a claim is of.
UPDATE epochline.target
SET relation = %(relation)s, deleted_keys = %(deleted_keys)s, accepted_epoch = coalesce(%(accepted)s, accepted_epoch)
WHERE (schema_name, table_name, pipeline) = (%(schema)s, %(table)s, %(pipeline)s)

-- name: rows_of_epochs_in_target
-- Per standing epoch after this one, the newest first, the rows that it wrote to a target, and how many rows of earlier
-- epochs it replaced or deleted. Mode append replaces none.
SELECT r.epoch_id, coalesce(r.inserted + r.updated, r.rows) AS written, coalesce(r.updated + r.deleted, 0) AS replaced
FROM epochline.receipt r JOIN epochline.epoch e USING (pipeline, epoch_id)
WHERE r.pipeline = %(pipeline)s AND r.sink = %(sink)s AND r.epoch_id > %(after)s AND e.undone_by IS NULL
ORDER BY r.epoch_id DESC

-- name: rows_due_in_target
-- The least number of rows that the standing epochs after this one left in a target, the newest of them that wrote
-- rows, and the number of keys that they deleted. Sums of mode add have no count of keys: one row at least. Rows that an
-- operator erased are due no more; of sums, only epochs after the last erasure tell of a row.
SELECT (coalesce(sum(coalesce(r.inserted - r.deleted, (r.rows > 0 AND r.epoch_id > x.last)::integer)), 0)
        - CASE WHEN count(r.inserted) > 0 THEN min(x.rows) ELSE 0 END)::bigint AS least,
       max(r.epoch_id) FILTER (WHERE coalesce(r.inserted + r.updated + r.deleted, r.rows) > 0) AS epoch_id,
       coalesce(sum(r.deleted), 0)::bigint AS deleted
FROM (SELECT coalesce(max(at_epoch), 0) AS last, coalesce(sum(rows), 0) AS rows FROM epochline.erased_row
      WHERE pipeline = %(pipeline)s AND sink = %(sink)s AND at_epoch > %(after)s) x
LEFT JOIN (epochline.receipt r JOIN epochline.epoch e USING (pipeline, epoch_id))
    ON r.pipeline = %(pipeline)s AND r.sink = %(sink)s AND r.epoch_id > %(after)s AND e.undone_by IS NULL

-- name: keep_image
-- Record a before-image.
INSERT INTO epochline.before_image (pipeline, epoch_id, sink, table_name)
VALUES (%(pipeline)s, %(epoch_id)s, %(sink)s, %(table_name)s)

-- name: images
-- The before-images of a target, the newest first. An image whose table is gone puts nothing back.
SELECT epoch_id, table_name FROM epochline.before_image
WHERE pipeline = %(pipeline)s AND sink = %(sink)s AND to_regclass(format('epochline.%%I', table_name)) IS NOT NULL
ORDER BY epoch_id DESC

-- name: delete_image
-- Delete the record of a before-image.
DELETE FROM epochline.before_image WHERE pipeline = %(pipeline)s AND sink = %(sink)s AND epoch_id = %(epoch_id)s

-- name: find_relation
-- The oid and kind of a table; and the first of its tables, it and its partitions and heirs, in which rows do not commit
-- with the ledger or do not survive a crash: a foreign or an unlogged one. A partitioned table holds no row itself.
WITH RECURSIVE tree AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = %(table)s
    UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON i.inhparent = t.oid
)
SELECT c.oid, c.relkind, part.is_foreign, part.name AS unfit FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN LATERAL (
    SELECT p.relkind = 'f' AS is_foreign, s.nspname || '.' || p.relname AS name
    FROM tree JOIN pg_class p USING (oid) JOIN pg_namespace s ON s.oid = p.relnamespace
    WHERE p.relkind = 'f' OR p.relkind <> 'p' AND p.relpersistence = 'u' ORDER BY 1 DESC, 2 LIMIT 1
) part ON true
WHERE n.nspname = %(schema)s AND c.relname = %(table)s

-- name: columns_of_table
-- The columns of a table, as `TargetColumn` in epochline.postgres.targets.columns describes them. Domains are taken off
-- until the leaf is reached: the type itself, or that of an array's elements.
WITH RECURSIVE step AS (
    SELECT a.attrelid AS relation, a.attnum AS num, format_type(a.atttypid, a.atttypmod) AS kind, a.atttypid AS type,
           a.atttypmod AS modifier, 0 AS arrays, false AS inside
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT s.relation, s.num, s.kind, below.type, below.modifier, s.arrays + below.is_element::int,
           s.inside OR below.is_inside
    FROM step s JOIN pg_catalog.pg_type t ON t.oid = s.type CROSS JOIN LATERAL (
        SELECT t.typbasetype AS type, t.typtypmod AS modifier, false AS is_element, false AS is_inside
        WHERE t.typtype = 'd'
        UNION ALL
        SELECT e.oid, s.modifier, NOT s.inside, false FROM pg_catalog.pg_type e WHERE e.typarray = t.oid
        UNION ALL
        SELECT m.atttypid, m.atttypmod, false, true FROM pg_catalog.pg_attribute m
        WHERE t.typtype = 'c' AND m.attrelid = t.typrelid AND m.attnum > 0 AND NOT m.attisdropped
        UNION ALL
        SELECT r.rngsubtype, -1, false, true FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
    ) below
)
SELECT a.attname AS name, s.kind, a.attnotnull AS not_null, a.attgenerated = '' AND a.attidentity <> 'a' AS writable,
       a.attgenerated <> '' AS generated, a.attidentity <> '' AS identity,
       (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_catalog.pg_attrdef d
        WHERE (d.adrelid, d.adnum) = (a.attrelid, a.attnum)) AS expression,
       (SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder) FROM pg_catalog.pg_enum e
        WHERE e.enumtypid = a.atttypid) AS labels,
       (SELECT ARRAY[n.nspname::text, c.collname::text] FROM pg_catalog.pg_type k, pg_catalog.pg_collation c
        JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace
        WHERE k.oid = a.atttypid AND c.oid = a.attcollation AND c.oid <> k.typcollation) AS collation,
       s.arrays, s.leaf, s.plain, s.is_enum, s.inner, s.inner_modified
FROM (
    SELECT s.relation, s.num, s.kind, max(s.arrays) AS arrays,
           max(format_type(s.type, s.modifier)) FILTER (WHERE is_leaf) AS leaf,
           max(format_type(s.type, -1)) FILTER (WHERE is_leaf) AS plain,
           bool_or(t.typtype = 'e') FILTER (WHERE is_leaf) AS is_enum,
           coalesce(array_agg(DISTINCT format_type(s.type, -1)) FILTER (WHERE s.inside), '{}') AS inner,
           coalesce(bool_or(s.modifier <> -1) FILTER (WHERE s.inside), false) AS inner_modified
    FROM step s JOIN pg_catalog.pg_type t ON t.oid = s.type
    CROSS JOIN LATERAL (SELECT NOT s.inside AND t.typtype <> 'd'
                               AND NOT EXISTS (SELECT FROM pg_catalog.pg_type e WHERE e.typarray = t.oid) AS is_leaf) l
    GROUP BY s.relation, s.num, s.kind) s
JOIN pg_catalog.pg_attribute a ON (a.attrelid, a.attnum) = (s.relation, s.num) ORDER BY a.attnum

-- name: rules_of_table
-- What `Target` in epochline.postgres.targets.catalog tells of a table, and whether row-level security may hide rows from
-- this login. Triggers whose names start with the prefix of state triggers do not count.
WITH RECURSIVE tree AS (
    SELECT %(oid)s::oid AS oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON i.inhparent = t.oid
), policy AS (
    SELECT polpermissive, pg_get_expr(polqual, polrelid) AS condition FROM pg_policy
    WHERE polrelid = %(oid)s AND polcmd IN ('r', '*')
      AND (0 = ANY (polroles) OR EXISTS (SELECT FROM unnest(polroles) role WHERE pg_has_role(role, 'USAGE')))
)
SELECT c.relkind = 'p' OR c.relispartition OR c.relhasrules OR row_security_active(c.oid)
           OR EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attgenerated <> '')
           OR EXISTS (SELECT FROM pg_constraint WHERE conrelid = c.oid AND contype IN ('f', 'x'))
           OR EXISTS (SELECT FROM pg_constraint WHERE confrelid = c.oid AND contype = 'f')
           OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal
                      AND NOT starts_with(tgname::text, %(state_triggers)s))
           OR EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid
                      AND (indpred IS NOT NULL OR indexprs IS NOT NULL OR indisunique AND NOT indimmediate))
           OR EXISTS (SELECT FROM pg_index i, unnest(i.indclass::oid[], i.indcollation::oid[], i.indkey::int[]) u (k, l, num)
                      JOIN pg_opclass o ON o.oid = u.k JOIN pg_attribute a ON a.attnum = u.num
                      WHERE (i.indrelid, a.attrelid) = (c.oid, c.oid) AND i.indisunique
                        AND (NOT o.opcdefault OR u.l <> a.attcollation))
           AS has_other_rules,
       row_security_active(c.oid) OR c.relkind = 'r' AND (SELECT count(*) > 1 FROM tree)
           OR rule.exist
           OR EXISTS (SELECT FROM pg_trigger JOIN tree ON tgrelid = tree.oid WHERE NOT tgisinternal
                      AND tgenabled <> 'D' AND NOT starts_with(tgname::text, %(state_triggers)s))
           OR EXISTS (SELECT FROM pg_constraint JOIN tree ON tree.oid IN (conrelid, confrelid) WHERE contype = 'f'
                      AND (confdeltype IN ('c', 'n', 'd') OR confupdtype IN ('c', 'n', 'd')))
           OR EXISTS (SELECT FROM pg_depend d JOIN pg_proc p ON p.oid = d.refobjid AND p.provolatile = 'v'
                      JOIN pg_language l ON l.oid = p.prolang AND l.lanname NOT IN ('internal', 'c')
                      WHERE d.refclassid = 'pg_proc'::regclass
                        AND (d.classid = 'pg_attrdef'::regclass
                             AND d.objid IN (SELECT a.oid FROM pg_attrdef a JOIN tree ON a.adrelid = tree.oid)
                             OR d.classid = 'pg_constraint'::regclass
                             AND d.objid IN (SELECT k.oid FROM pg_attribute a JOIN tree ON a.attrelid = tree.oid
                                             JOIN pg_constraint k ON k.conrelid = tree.oid OR k.contypid = a.atttypid)))
           AS is_changed_by_others,
       rewrites_inserts, sees_rewriting, sees_deletes, changes_rows,
       row_security_active(c.oid) AND (NOT EXISTS (SELECT FROM policy WHERE polpermissive AND condition = 'true')
           OR EXISTS (SELECT FROM policy WHERE NOT polpermissive AND condition <> 'true')) AS hides_rows,
       current_user AS login,
       ARRAY(SELECT json_agg(a.attname) FROM pg_index i
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
             WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL
               AND i.indexprs IS NULL GROUP BY i.indexrelid) AS unique_keys,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND EXISTS (
                 SELECT FROM pg_collation l WHERE NOT l.collisdeterministic AND (l.oid = a.attcollation OR EXISTS (
                     SELECT FROM pg_index i, unnest(i.indcollation::oid[], i.indkey::int[]) u (l, num)
                     WHERE i.indrelid = c.oid AND i.indisunique AND u.num = a.attnum AND u.l = l.oid)))
             ORDER BY a.attnum) AS loose,
       ARRAY(SELECT json_build_object('name', k.conname, 'expression', pg_get_expr(k.conbin, k.conrelid),
                                      'columns', ARRAY(SELECT a.attname FROM pg_attribute a
                                                       WHERE a.attrelid = c.oid AND a.attnum = ANY (k.conkey)))
             FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'c'
               -- PostgreSQL 18 has constraints that are NOT ENFORCED.
               AND (to_jsonb(k)->>'conenforced') IS DISTINCT FROM 'false' ORDER BY k.conname) AS checks,
       ARRAY(SELECT json_agg(a.attname) FROM pg_index i
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) AND a.attlen = -1
             WHERE i.indrelid = c.oid AND i.indexprs IS NULL AND i.indpred IS NULL GROUP BY i.indexrelid) AS long_indexes,
       EXISTS (SELECT FROM pg_index i
               WHERE (i.indisunique OR i.indisexclusion)
                 AND (i.indrelid = c.oid OR i.indrelid IN (SELECT relid FROM pg_partition_tree(c.oid))
                                            AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = i.indexrelid))
                 AND NOT (i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
                          AND i.indpred IS NULL AND i.indexprs IS NULL)) AS exclusive,
       ARRAY(SELECT json_build_object(
                 'schema', kn.nspname, 'name', k.conname, 'deferrable', k.condeferrable, 'on_delete', k.confdeltype,
                 'on_update', k.confupdtype,
                 'child', CASE WHEN h.oid IN (SELECT oid FROM tree) THEN ARRAY[n.nspname, c.relname]
                          ELSE ARRAY[hn.nspname, h.relname] END,
                 'parent', CASE WHEN p.oid IN (SELECT oid FROM tree) THEN ARRAY[n.nspname, c.relname]
                           ELSE ARRAY[pn.nspname, p.relname] END,
                 'columns', ARRAY(SELECT a.attname FROM unnest(k.conkey) WITH ORDINALITY u (num, at) JOIN pg_attribute a
                                  ON a.attrelid = k.conrelid AND a.attnum = u.num ORDER BY u.at),
                 'referenced', ARRAY(SELECT a.attname FROM unnest(k.confkey) WITH ORDINALITY u (num, at)
                                     JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.num
                                     ORDER BY u.at))
             FROM pg_constraint k JOIN pg_namespace kn ON kn.oid = k.connamespace
             JOIN pg_class h ON h.oid = k.conrelid JOIN pg_namespace hn ON hn.oid = h.relnamespace
             JOIN pg_class p ON p.oid = k.confrelid JOIN pg_namespace pn ON pn.oid = p.relnamespace
             WHERE k.contype = 'f' AND (to_jsonb(k)->>'conenforced') IS DISTINCT FROM 'false'
               -- The key of a partition to a table is the key of its whole table to it. A partition or an heir may also
               -- have keys of its own, from it and to it.
               AND (k.conparentid = 0 AND EXISTS (SELECT FROM tree WHERE oid IN (k.conrelid, k.confrelid))
                    OR k.conrelid = c.oid
                    OR k.confrelid = c.oid AND NOT EXISTS (SELECT FROM pg_constraint w
                                                           WHERE w.oid = k.conparentid AND w.confrelid = k.confrelid))
             ORDER BY k.oid) AS foreign_keys,
       ARRAY(SELECT json_build_array(n.nspname, k.conname) FROM pg_constraint k
             JOIN pg_namespace n ON n.oid = k.connamespace
             WHERE k.condeferrable AND k.contype IN ('f', 'u', 'x', 'p')
               AND (c.oid IN (k.conrelid, k.confrelid)
                    OR k.conparentid = 0 AND EXISTS (SELECT FROM tree WHERE oid IN (k.conrelid, k.confrelid)))
             ORDER BY k.oid) AS deferrable
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
-- pg_class.relhasrules stays true after DROP RULE, until VACUUM.
CROSS JOIN LATERAL (SELECT count(*) > 0 AS exist, coalesce(bool_or(ev_type = '3'), false) AS rewrites_inserts
                    FROM pg_rewrite WHERE ev_class = c.oid) rule
CROSS JOIN LATERAL (
    SELECT rule.exist OR coalesce(bool_or(t.tgtype & 24 > 0 OR t.tgtype & 6 = 4), false) AS sees_rewriting,
           rule.exist OR coalesce(bool_or(t.tgtype & 8 > 0), false) AS sees_deletes,
           rule.exist OR coalesce(bool_or(t.tgtype & 2 > 0), false) AS changes_rows
    FROM pg_trigger t
    WHERE (t.tgrelid = c.oid OR t.tgrelid IN (SELECT relid FROM pg_partition_tree(c.oid)))
      AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND NOT starts_with(t.tgname::text, %(state_triggers)s)) code
WHERE c.oid = %(oid)s

-- name: exclusive_rules
-- The unique indexes and exclusion constraints of a table and its partitions, except those on exactly these columns:
-- for each the expressions with their operators, the condition, the columns, whether NULLs are equal.
WITH r AS (
    SELECT i.*, k.conexclop FROM pg_index i
    LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.contype = 'x' AND k.conrelid = i.indrelid
    WHERE (i.indisunique OR i.indisexclusion) AND i.indisready
      AND (i.indrelid = %(oid)s
           OR i.indrelid IN (SELECT relid FROM pg_partition_tree(%(oid)s))
              AND NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = i.indexrelid))
)
SELECT c.relname AS name, r.indisexclusion AS excludes, r.indnullsnotdistinct AS nulls_are_equal,
       pg_get_expr(r.indpred, r.indrelid) AS condition,
       ARRAY(SELECT json_build_object(
                 'expression', pg_get_indexdef(r.indexrelid, n, true),
                 'collation', (SELECT json_build_array(s.nspname, l.collname) FROM pg_collation l
                               JOIN pg_namespace s ON s.oid = l.collnamespace WHERE l.oid = r.indcollation[n - 1]),
                 'operator', (SELECT json_build_array(s.nspname, o.oprname) FROM pg_operator o
                              JOIN pg_namespace s ON s.oid = o.oprnamespace
                              WHERE o.oid = coalesce(r.conexclop[n], (
                                  SELECT m.amopopr FROM pg_opclass p JOIN pg_amop m ON m.amopfamily = p.opcfamily
                                  WHERE p.oid = r.indclass[n - 1] AND m.amoplefttype = p.opcintype
                                    AND m.amoprighttype = p.opcintype AND m.amopstrategy = 3))))
             FROM generate_series(1, r.indnkeyatts) n ORDER BY n) AS elements,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = r.indrelid AND a.attnum = ANY (r.indkey[0:r.indnkeyatts - 1])) AS columns,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = r.indrelid AND a.attnum > 0
               AND (a.attnum = ANY (r.indkey[0:r.indnkeyatts - 1])
                    OR EXISTS (SELECT FROM pg_depend d
                               WHERE d.classid = 'pg_class'::regclass AND d.objid = r.indexrelid
                                 AND d.refclassid = 'pg_class'::regclass AND d.refobjid = r.indrelid
                                 AND d.refobjsubid = a.attnum))) AS read
FROM r JOIN pg_class c ON c.oid = r.indexrelid
WHERE r.indexprs IS NOT NULL OR r.indpred IS NOT NULL OR r.indisexclusion
   OR NOT (SELECT array_agg(a.attname::text ORDER BY a.attname::text) FROM pg_attribute a
           WHERE a.attrelid = r.indrelid AND a.attnum = ANY (r.indkey[0:r.indnkeyatts - 1]))
          = (SELECT array_agg(one ORDER BY one) FROM unnest(%(key)s::text[]) one)
ORDER BY c.relname

-- name: rows_changed_by_transaction
-- The rows of a table, its partitions and heirs that this transaction inserted, updated and deleted so far, by
-- PostgreSQL's own count: statements of triggers, rules and cascades are in it. The session's earlier transactions may
-- be in it too, so only the difference of two looks counts.
WITH RECURSIVE tree AS (
    SELECT %(oid)s::oid AS oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON i.inhparent = t.oid
)
SELECT coalesce(sum(pg_stat_get_xact_tuples_inserted(oid)), 0)::bigint AS inserted,
       coalesce(sum(pg_stat_get_xact_tuples_updated(oid)), 0)::bigint AS updated,
       coalesce(sum(pg_stat_get_xact_tuples_deleted(oid)), 0)::bigint AS deleted
FROM tree

-- name: provenance_of_table
-- The owner of a table; whether Epochline creates tables as this role: the ledger's owner, this login or a role that it
-- is a member of, epochline_owner or a member of it; and the unique keys: name, columns, and whether the columns alone
-- do not say which rows it covers (an expression or a condition).
SELECT r.rolname AS owner,
       c.relowner IN (l.nspowner, me.oid) OR c.relowner = to_regrole('epochline_owner')
           OR EXISTS (SELECT FROM pg_auth_members m
                      WHERE (m.roleid, m.member) IN ((to_regrole('epochline_owner'), c.relowner), (c.relowner, me.oid)))
           AS is_ours,
       ARRAY(SELECT json_build_object(
                 'name', k.relname, 'covers_more', i.indexprs IS NOT NULL OR i.indpred IS NOT NULL,
                 'columns', ARRAY(SELECT a.attname FROM unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY u (num, at)
                                  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = u.num ORDER BY u.at))
             FROM pg_index i JOIN pg_class k ON k.oid = i.indexrelid
             WHERE i.indrelid = c.oid AND i.indisunique ORDER BY k.relname) AS keys
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
JOIN pg_namespace l ON l.nspname = 'epochline' JOIN pg_roles me ON me.rolname = current_user
WHERE n.nspname = %(schema)s AND c.relname = %(table)s

-- name: sequences_of_table
-- The sequences that fill columns of a table. A login that may fill an identity column need not have the right to
-- read its sequence.
SELECT a.attname AS filled, format_type(a.atttypid, a.atttypmod) AS kind, q.seqrelid::regclass::text AS sequence,
       q.seqcycle AS cycles, q.seqincrement AS step, q.seqmin AS lowest, q.seqmax AS highest,
       CASE WHEN has_sequence_privilege(q.seqrelid, 'USAGE, SELECT')
            THEN coalesce(pg_sequence_last_value(q.seqrelid), q.seqstart - q.seqincrement) END
           AS last
FROM pg_attribute a
JOIN LATERAL (
    SELECT d.refobjid AS oid FROM pg_attrdef f
    JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_class'::regclass
    WHERE f.adrelid = a.attrelid AND f.adnum = a.attnum
    UNION
    SELECT d.objid FROM pg_depend d
    WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'i' AND d.refclassid = 'pg_class'::regclass
      AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum) s ON true
JOIN pg_sequence q ON q.seqrelid = s.oid
WHERE a.attrelid = %(oid)s

-- name: missing_rights
-- The GRANTs that this login lacks to write a table with these privileges.
WITH target AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = %(table)s
)
SELECT format('GRANT USAGE ON SCHEMA %%I', nspname) FROM pg_namespace
WHERE nspname = %(schema)s AND NOT has_schema_privilege(oid, 'USAGE')
UNION ALL
SELECT format('GRANT %%s ON %%s', kind, oid::regclass) FROM unnest(%(privileges)s) AS kind, target
WHERE NOT CASE WHEN kind = 'DELETE' THEN has_table_privilege(oid, kind) ELSE has_any_column_privilege(oid, kind) END
UNION ALL
-- A login that may write some columns lacks the others.
SELECT format('GRANT %%s (%%s) ON %%s', kind, string_agg(quote_ident(name), ', ' ORDER BY a.attnum), oid::regclass)
FROM (SELECT 'INSERT', unnest(%(inserted)s::text[]) UNION ALL SELECT 'UPDATE', unnest(%(updated)s::text[]))
     AS wanted (kind, name), target JOIN pg_attribute a ON a.attrelid = target.oid
WHERE kind = ANY (%(privileges)s) AND a.attname = name AND has_any_column_privilege(oid, kind)
  AND NOT has_column_privilege(oid, a.attnum, kind)
GROUP BY kind, oid
UNION ALL
SELECT format('GRANT USAGE ON SEQUENCE %%s', seqrelid::regclass)
FROM target JOIN pg_attrdef f ON f.adrelid = target.oid
JOIN pg_depend d ON (d.classid, d.objid, d.refclassid) = ('pg_attrdef'::regclass, f.oid, 'pg_class'::regclass)
JOIN pg_sequence q ON q.seqrelid = d.refobjid
WHERE NOT has_sequence_privilege(seqrelid, 'USAGE')

-- name: publishes_changes
-- Whether a publication of this database publishes changes of rows.
SELECT EXISTS (SELECT FROM pg_publication WHERE pubupdate OR pubdelete)

-- name: tables_without_identity
-- Of a table and its partitions and heirs, those without a replica identity.
WITH RECURSIVE down AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = %(table)s
    UNION SELECT i.inhrelid FROM pg_inherits i JOIN down ON i.inhparent = down.oid
)
SELECT format('%%I.%%I', n.nspname, c.relname) FROM down JOIN pg_class c USING (oid)
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relreplident <> 'f'
  AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid
                  AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)
ORDER BY 1

-- name: schema_exists
-- Whether a schema exists.
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %(schema)s)

-- name: role_exists
-- Whether a role exists.
SELECT to_regrole(%(role)s) IS NOT NULL

-- name: free_connections
-- How many more clients can connect to the server.
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
       - current_setting('reserved_connections')::int - count(*)
FROM pg_stat_activity WHERE backend_type = 'client backend'

-- name: only_row
-- The only row of a query that an author declared.
SELECT CAST(epochline.only_row(%(query)s) AS text)

-- name: allow_time
-- Let statements of this transaction take at least this time.
SELECT set_config('statement_timeout', %(statement)s, true) FROM pg_catalog.pg_settings
WHERE name = 'statement_timeout' AND setting::bigint BETWEEN 1 AND CAST(%(statement)s AS bigint)

-- name: limit_time
-- Limit the time of statements and locks in this transaction.
SELECT set_config('statement_timeout', %(statement)s, true), set_config('lock_timeout', %(lock)s, true)
