# The daily commands by name. `just` lists them; each is one line that can be typed without `just`
# (https://just.systems) too.

# List the commands
default:
    @just --list

# Serve the sample rules on the embedded store, in a debug build
serve *flags:
    cargo run -- serve {{ flags }}

# Start a Redis Cluster, two pods and Envoy, and send them traffic
demo *flags:
    scripts/demo {{ flags }}

# Compile everything without linking: the fastest answer to "does it build?"
check:
    cargo check --workspace --all-targets --locked

# Format the source
fmt:
    cargo fmt

# Check format, lints and documentation, as scripts/test does before its tests
lint:
    cargo fmt --check
    cargo clippy --workspace --all-targets --locked -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# Run the unit tests: seconds, and no server is needed
unit *filter:
    cargo test --workspace --lib --locked {{ filter }}

# Run one test binary (it, envoy, faults, fleet, attack, sim, fuzz), with an optional filter
only binary *filter:
    cargo test --locked --test {{ binary }} {{ filter }}

# Install what is missing, then run every check and every test
test *args:
    scripts/test {{ args }}

# Build the images of the sidecar and of ratectl, and run them
images *flags:
    scripts/images {{ flags }}

# Bring docker-compose.yml up in Docker, and take a Redis master and a pod away
test-containers *flags:
    scripts/test-containers {{ flags }}

# Render the Helm chart, and compare it with what is expected
test-chart *flags:
    scripts/test-chart {{ flags }}

# Have a real Kubernetes API server check the objects of the chart (root)
test-kubernetes:
    scripts/test-kubernetes

# Test the API of the control plane by its OpenAPI document
test-api *flags:
    scripts/test-api {{ flags }}

# Run ratelease as the rate limit service of a real Envoy Gateway (root)
test-envoy-gateway *flags:
    scripts/test-envoy-gateway {{ flags }}

# Compare the answers of ratelease with those of the reference, both running
compare-reference *flags:
    scripts/compare-reference {{ flags }}

# Compare what ratelease, the reference and gubernator cost, and how exact they are, on the same load
compare *flags:
    scripts/compare {{ flags }}

# Build the documentation as a site, and check its links
docs *flags:
    scripts/docs {{ flags }}

# Make the files of a release
release *flags:
    scripts/release {{ flags }}

# Run what must pass before a change is merged: tests, fuzzing, dependency rules, bill of materials
ci:
    .ci/run

# Measure one decision in process; `just bench key` runs one group
bench *filter:
    cargo bench --bench main -- {{ filter }}

# Measure a pod over gRPC, beside servers that decide nothing
bench-served *flags:
    scripts/bench {{ flags }}

# Run the fault table; `just faults --row R4` runs one row
faults *flags:
    scripts/faults {{ flags }}

# Run the attack table; `just attack --only V4` runs some rows
attack *flags:
    scripts/attack {{ flags }}

# Fuzz what reads hostile input, with fresh seeds
fuzz *flags='--for 1m':
    scripts/fuzz {{ flags }}
