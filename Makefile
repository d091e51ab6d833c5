# `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := build

VERSION ?= v1.37.2+hyperkube.0
COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
DATE    := $(shell git log -1 --format=%cd --date=format:%Y-%m-%dT%H:%M:%SZ 2>/dev/null || echo 1970-01-01T00:00:00Z)
STAMP   := hyperkube/internal/base/version
LDFLAGS := -s -w -X $(STAMP).gitVersion=$(VERSION) -X $(STAMP).gitCommit=$(COMMIT) -X $(STAMP).buildDate=$(DATE)
# The version that kubectl reports, and that all clients send in their User-Agent.
NUMBERS := $(subst ., ,$(VERSION:v%=%))
LDFLAGS += $(foreach lib,k8s.io/component-base/version k8s.io/client-go/pkg/version,\
  -X $(lib).gitMajor=$(word 1,$(NUMBERS)) -X $(lib).gitMinor=$(word 2,$(NUMBERS)) -X $(lib).gitVersion=$(VERSION) \
  -X $(lib).gitCommit=$(COMMIT) -X $(lib).gitTreeState=clean -X $(lib).buildDate=$(DATE))
PREFIX  ?= /usr/local
LINKS   := kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy etcd kubectl
SUDO    := $(shell [ $$(id -u) = 0 ] || echo sudo)
# ARCH=arm64 builds bin/arm64/hyperkube on an amd64 machine, and vice versa.
ARCH    ?= $(shell go env GOARCH 2>/dev/null)
# The architectures of a release.
ARCHES  ?= amd64 arm64
# Packages with concurrent code, whose tests run under the race detector.
RACE    := ./internal/store/... ./internal/base/lifecycle/... ./internal/host/hostjournal/... ./components/scheduler/... ./components/proxy/...

# Building, vetting and testing use the same flags, so that they share the build cache. Only the runtime's program and the
# race detector need cgo.
export GOFLAGS := -buildvcs=false -trimpath
export CGO_ENABLED := 0

# The container runtime's packages use cgo. With -trimpath, the build cache contains paths of cgo files in other checkouts,
# which may not exist anymore.
RUNTIME_GO := CGO_ENABLED=1 GOFLAGS=-buildvcs=false go

.PHONY: help build setup up test unit e2e e2e-vm e2e-browser check-bundle gateway-conformance gateway-conformance-subset policy-conformance cert-manager-test upgrade-test kill-logging fuzz vulncheck lint generate bench bench-gateway bench-scale install clean runtime release release-test

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

ifeq ($(ARCH),$(shell go env GOARCH 2>/dev/null))
build: setup runtime ## build bin/hyperkube and its symlinks; ARCH=arm64 for another architecture
	go build -ldflags '$(LDFLAGS)' -o bin/hyperkube .
	@for link in $(LINKS); do ln -sfn hyperkube bin/$$link; done
else
build: setup
	@scripts/build-arch $(ARCH) '$(LDFLAGS)'
endif

runtime: setup
	@scripts/build-runtime

setup: ## install missing packages for building and running
	@scripts/setup

up: build ## start a cluster on this machine
	$(SUDO) bin/hyperkube up
	@scripts/after-up

test: build ## check formatting, vet, lint, then run unit and e2e tests
	@scripts/check-format
	go vet ./...
	$(RUNTIME_GO) vet -tags seccomp ./components/runtime/...
	$(MAKE) --no-print-directory lint unit e2e gateway-conformance-subset
	$(MAKE) --no-print-directory e2e-browser RUN=TestSmoke

unit: ## unit tests, the concurrent packages under the race detector
	h2spec=$$(scripts/h2spec) && HYPERKUBE_H2SPEC=$$h2spec go test -timeout 30m $$(go list ./... | grep -v /components/runtime)
	CGO_ENABLED=1 go test -timeout 30m -race $(RACE)
	$(RUNTIME_GO) test -timeout 30m -tags seccomp ./components/runtime/...

e2e: build ## run e2e tests of clusters on this machine; needs root
	$(SUDO) env "PATH=$$PATH" HYPERKUBE_E2E=$(CURDIR)/bin/hyperkube go test -count=1 -timeout 40m -v ./e2e/...

e2e-vm: build ## run the tests of e2e/vm in a virtual machine, IMAGE=bookworm; RUN=REGEXP selects tests, also of e2e; needs root
	$(SUDO) env "PATH=$$PATH" VM_IMAGE=$(or $(IMAGE),bookworm) scripts/vm/run-tests '$(or $(RUN),.)'

e2e-browser: build ## run the tests of the dashboard in headless Chromium; RUN=REGEXP selects tests; needs root
	@scripts/setup browser
	cd e2e/browser && $(SUDO) env "PATH=$$PATH" HYPERKUBE_E2E=$(CURDIR)/bin/hyperkube go test -count=1 -timeout 20m -v -run '$(or $(RUN),.)' .

check-bundle: ## report whether the committed page of the dashboard is the one that its sources produce; needs npm
	cd components/dashboard/web && go run . -check

gateway-conformance: build ## run the conformance suite of the Gateway API; RUN=REGEXP selects tests, FLAGS=… are flags of the suite; needs root
	cd e2e/gatewayconformance && $(SUDO) env "PATH=$$PATH" HYPERKUBE_E2E=$(CURDIR)/bin/hyperkube go test -count=1 -timeout 30m -v \
	  -run 'TestConformance/$(or $(RUN),.)' . --gateway-class=hyperkube-internal $(FLAGS)

gateway-conformance-subset: ## run one test of the suite for each kind of route with a hostname
	@$(MAKE) --no-print-directory gateway-conformance RUN='^(HTTPRouteSimpleSameNamespace|GRPCExactMethodMatching|TLSRouteSimpleSameNamespace)'

policy-conformance: build ## run the conformance suite of the network policy API with iptables and nftables; RUN=REGEXP selects tests; needs root
	cd e2e/policyconformance && for mode in iptables nftables; do \
	  $(SUDO) env "PATH=$$PATH" HYPERKUBE_E2E=$(CURDIR)/bin/hyperkube HYPERKUBE_PROXY_MODE=$$mode go test -count=1 -timeout 30m -v \
	  -run 'TestConformance/$(or $(RUN),.)' . || exit 1; done

cert-manager-test: build ## issue certificates for a Gateway and an Ingress with cert-manager and an ACME server; needs root
	cd e2e/certmanager && $(SUDO) env "PATH=$$PATH" HYPERKUBE_E2E=$(CURDIR)/bin/hyperkube go test -count=1 -timeout 30m -v .

upgrade-test: build ## upgrade clusters of an earlier build, FROM=COMMIT, to this one; needs root
	@scripts/upgrade-test $(FROM)

kill-logging: ## kill the collection of logs 50 times under load, and check that no record is lost
	HYPERKUBE_TEST_KILLS=50 go test -count=1 -timeout 10m -v -run '^TestKill$$' ./components/logging/collect

fuzz: setup ## run each fuzz target for FUZZTIME (10s); FUZZ=REGEXP selects targets
	@scripts/fuzz $(or $(FUZZTIME),10s) '$(or $(FUZZ),.)'

vulncheck: build ## check for known vulnerabilities; VULNDB=URL selects another database
	@scripts/vulncheck

lint: ## run golangci-lint (pinned version)
	@scripts/lint

generate: ## regenerate generated files; the page of the dashboard needs npm
	go generate ./...

bench: build ## run the benchmarks of docs/development/performance.md
	$(SUDO) env "PATH=$$PATH" scripts/bench

bench-gateway: setup ## benchmark the gateway beside nginx, haproxy and Caddy; FLAGS=… are flags of the benchmark
	@scripts/bench-gateway $(FLAGS)

bench-scale: build ## benchmark the API server with 10,000 to 100,000 pods; takes minutes
	$(SUDO) env "PATH=$$PATH" go run ./e2e/scale -up

release: setup ## build archives, packages and images into bin/release/; ARCHES=amd64 for one architecture
	@scripts/release/build $(VERSION) $(ARCHES)

release-test: ## test the files in bin/release/; needs root, dpkg and rpm
	$(SUDO) env "PATH=$$PATH" HYPERKUBE_RELEASE=$(CURDIR)/bin/release go test -count=1 -timeout 20m -v ./e2e/release

install: build ## install to PREFIX (/usr/local)
	install -D -m 0755 bin/hyperkube $(DESTDIR)$(PREFIX)/bin/hyperkube
	@[ -e $(DESTDIR)$(PREFIX)/bin/kubectl ] || ln -s hyperkube $(DESTDIR)$(PREFIX)/bin/kubectl

clean: ## remove build output
	rm -rf bin components/runtime/launch/program/runtime.zst
