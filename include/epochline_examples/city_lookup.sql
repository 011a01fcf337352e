-- The cities that dags/examples/city_lookup.py looks up. Spark's jobs only need to read them.
CREATE TABLE city (id text PRIMARY KEY, name text NOT NULL);
INSERT INTO city VALUES
    ('1', 'beijing'), ('2', 'shanghai'), ('3', 'guangzhou'), ('4', 'shenzhen'), ('5', 'hangzhou'),
    ('6', 'wuhan'), ('7', 'chengdu'), ('8', 'tianjin'), ('9', 'chongqing');
GRANT SELECT ON city TO epochline_writer;
