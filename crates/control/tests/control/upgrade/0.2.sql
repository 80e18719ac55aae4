-- What a database of release 0.2 has after an import, two publications, a rule that is not published,
-- and tokens of the command line.
INSERT INTO counters (id, change, version) VALUES (1, 150, 2);
INSERT INTO domains (name, defaults, changed, published, hash) VALUES ('shop', '{}', 142, 3, '4ed354f6833e91836d7e107c08d67a916fce115db8b18d08e07f2ca852566769');
INSERT INTO domains (name, defaults, changed, published, hash) VALUES ('bank', '{}', 137, 137, '78783558a5f81b61961fe167514dd1de37e9de333f00047353df74b0a7cf442c');
INSERT INTO rules (id, domain, entries, scope, scope_value, settings, position, revision, updated_at, updated_by) VALUES ('41a8f569-82e2-81b7-99bb-9d3fe3ca9c33', 'shop', '[{"key":"user_id"}]', 'user_id', '', '{"rate_limit":{"requests_per_unit":100,"unit":"minute"}}', 6, 3, 1795935984565, 'admin/fffdbc4ee6c0');
INSERT INTO rules (id, domain, entries, scope, scope_value, settings, position, revision, updated_at, updated_by) VALUES ('c98662f7-4244-8914-ac51-f85ed1e5b438', 'shop', '[{"key":"path","value":"/login"},{"key":"ip"}]', 'path', '/login', '{"rate_limit":{"requests_per_unit":5,"unit":"hour"}}', 70, 3, 1795935984565, 'admin/fffdbc4ee6c0');
INSERT INTO rules (id, domain, entries, scope, scope_value, settings, position, revision, updated_at, updated_by) VALUES ('545604bb-de53-8af6-aac1-c6ac3144fc00', 'bank', '[{"key":"card"}]', 'card', '', '{"rate_limit":{"requests_per_unit":3,"unit":"hour"}}', 137, 137, 1795935984770, 'admin/fffdbc4ee6c0');
INSERT INTO rules (id, domain, entries, scope, scope_value, settings, position, revision, updated_at, updated_by) VALUES ('bdb182ad-f4ab-812a-a0e4-6d69049977e0', 'shop', '[{"key":"coupon"}]', 'coupon', '', '{"rate_limit":{"requests_per_unit":3,"unit":"hour"}}', 142, 142, 1795935985029, 'admin/fffdbc4ee6c0');
INSERT INTO changes (number, domain, rule, before, after, at, author, reason) VALUES (4, 'shop', '41a8f569-82e2-81b7-99bb-9d3fe3ca9c33', NULL, '{"rate_limit":{"requests_per_unit":100,"unit":"minute"}}', 1795935984565, 'admin/fffdbc4ee6c0', '');
INSERT INTO changes (number, domain, rule, before, after, at, author, reason) VALUES (5, 'shop', 'c98662f7-4244-8914-ac51-f85ed1e5b438', NULL, '{"rate_limit":{"requests_per_unit":5,"unit":"hour"}}', 1795935984565, 'admin/fffdbc4ee6c0', '');
INSERT INTO changes (number, domain, rule, before, after, at, author, reason) VALUES (138, 'bank', '545604bb-de53-8af6-aac1-c6ac3144fc00', NULL, '{"rate_limit":{"requests_per_unit":3,"unit":"hour"}}', 1795935984770, 'admin/fffdbc4ee6c0', '');
INSERT INTO changes (number, domain, rule, before, after, at, author, reason) VALUES (143, 'shop', 'bdb182ad-f4ab-812a-a0e4-6d69049977e0', NULL, '{"rate_limit":{"requests_per_unit":3,"unit":"hour"}}', 1795935985029, 'admin/fffdbc4ee6c0', '');
INSERT INTO texts (hash, yaml, bytes, rules) VALUES ('4ed354f6833e91836d7e107c08d67a916fce115db8b18d08e07f2ca852566769', 'domain: shop
descriptors:
  - key: user_id
    rate_limit:
      unit: "minute"
      requests_per_unit: 100
  - key: path
    value: /login
    descriptors:
      - key: ip
        rate_limit:
          unit: "hour"
          requests_per_unit: 5
', 248, 2);
INSERT INTO texts (hash, yaml, bytes, rules) VALUES ('78783558a5f81b61961fe167514dd1de37e9de333f00047353df74b0a7cf442c', 'domain: bank
descriptors:
  - key: card
    rate_limit:
      unit: "hour"
      requests_per_unit: 3
', 102, 1);
INSERT INTO versions (number, at, author, reason, restores) VALUES (1, 1795935984705, 'admin/fffdbc4ee6c0', 'first', NULL);
INSERT INTO versions (number, at, author, reason, restores) VALUES (2, 1795935984895, 'admin/fffdbc4ee6c0', 'second', NULL);
INSERT INTO version_domains (version, domain, hash) VALUES (1, 'shop', '4ed354f6833e91836d7e107c08d67a916fce115db8b18d08e07f2ca852566769');
INSERT INTO version_domains (version, domain, hash) VALUES (2, 'bank', '78783558a5f81b61961fe167514dd1de37e9de333f00047353df74b0a7cf442c');
INSERT INTO audit (number, at, author, action, subject, reason) VALUES (2, 1795935981451, 'serve', 'token.create', 'fffdbc4ee6c0', 'first start');
INSERT INTO audit (number, at, author, action, subject, reason) VALUES (134, 1795935984565, 'admin/fffdbc4ee6c0', 'rules.import', 'shop', '');
INSERT INTO audit (number, at, author, action, subject, reason) VALUES (136, 1795935984705, 'admin/fffdbc4ee6c0', 'version.publish', '1: shop', 'first');
INSERT INTO audit (number, at, author, action, subject, reason) VALUES (139, 1795935984770, 'admin/fffdbc4ee6c0', 'rule.add', '545604bb-de53-8af6-aac1-c6ac3144fc00', '');
INSERT INTO audit (number, at, author, action, subject, reason) VALUES (141, 1795935984895, 'admin/fffdbc4ee6c0', 'version.publish', '2: bank', 'second');
INSERT INTO audit (number, at, author, action, subject, reason) VALUES (144, 1795935985029, 'admin/fffdbc4ee6c0', 'rule.add', 'bdb182ad-f4ab-812a-a0e4-6d69049977e0', '');
INSERT INTO audit (number, at, author, action, subject, reason) VALUES (146, 1795935985195, 'command line', 'token.create', '8d70273aaa76', '');
INSERT INTO audit (number, at, author, action, subject, reason) VALUES (148, 1795935985314, 'command line', 'token.create', '06e0584dc869', '');
INSERT INTO audit (number, at, author, action, subject, reason) VALUES (150, 1795935985356, 'command line', 'token.revoke', '06e0584dc869', '');
INSERT INTO tokens (id, name, hash, access, domains, created_at, expires_at, revoked_at) VALUES ('fffdbc4ee6c0', 'admin', 'd3dae83eced860c7fe4f32e319a5333a6809e2383c4373c758aea6d66fc4d01d', 'admin', NULL, 1795935981451, NULL, NULL);
INSERT INTO tokens (id, name, hash, access, domains, created_at, expires_at, revoked_at) VALUES ('8d70273aaa76', 'ci', 'cfff807a6974047174cbddbe5e1e71d62cce7cb3e2efcf33494fdecf4cafc454', 'write', '["shop"]', 1795935985195, NULL, NULL);
INSERT INTO tokens (id, name, hash, access, domains, created_at, expires_at, revoked_at) VALUES ('06e0584dc869', 'old', '54f56f43b7277a2ca54c0061c5090fbade1af927c7bf01466b28b51bcad70068', 'read', NULL, 1795935985314, NULL, 1795935985356);
INSERT INTO answers (author, idempotency_key, request, status, headers, body, at) VALUES ('admin/fffdbc4ee6c0', 'k1', '023f30bce6bedbc6d8422d305b0b90c32bec6ad0ccb0898316323d206ca33cca', 201, '"142"', '{"id":"bdb182ad-f4ab-812a-a0e4-6d69049977e0","domain":"shop","entries":[{"key":"coupon"}],"rate_limit":{"requests_per_unit":3,"unit":"hour"},"position":142,"revision":142,"updated_at":"2026-11-29T07:06:25.029Z","updated_by":"admin/fffdbc4ee6c0"}', 1795935985029);
