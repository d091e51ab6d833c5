# `make help` lists what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := build

VERSION ?= v1.37.2+hyperkube.0
COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
DATE    := $(shell git log -1 --format=%cd --date=format:%Y-%m-%dT%H:%M:%SZ 2>/dev/null || echo 1970-01-01T00:00:00Z)
STAMP   := hyperkube/internal/version
LDFLAGS := -s -w -X $(STAMP).gitVersion=$(VERSION) -X $(STAMP).gitCommit=$(COMMIT) -X $(STAMP).buildDate=$(DATE)
# What kubectl says of itself, and every client in its User-Agent.
NUMBERS := $(subst ., ,$(VERSION:v%=%))
LDFLAGS += $(foreach lib,k8s.io/component-base/version k8s.io/client-go/pkg/version,\
  -X $(lib).gitMajor=$(word 1,$(NUMBERS)) -X $(lib).gitMinor=$(word 2,$(NUMBERS)) -X $(lib).gitVersion=$(VERSION) \
  -X $(lib).gitCommit=$(COMMIT) -X $(lib).gitTreeState=clean -X $(lib).buildDate=$(DATE))
PREFIX  ?= /usr/local
LINKS   := kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy etcd kubectl
SUDO    := $(shell [ $$(id -u) = 0 ] || echo sudo)
# ARCH=arm64 builds bin/arm64/hyperkube on an amd64 machine, and the other way round.
ARCH    ?= $(shell go env GOARCH 2>/dev/null)
# Packages whose tests run under the race detector: those with concurrency of their own.
RACE    := ./internal/store/... ./internal/lifecycle/... ./internal/hostchange/... ./components/scheduler/... ./components/proxy/...

# One set of flags for building, vetting and testing: what one has compiled the others need not. The runtime's program
# and the race detector are the ones that need cgo.
export GOFLAGS := -buildvcs=false -trimpath
export CGO_ENABLED := 0

.PHONY: help build setup up test unit e2e lint generate bench bench-scale install clean runtime

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

setup: ## install what building and running needs, if it is missing
	@scripts/setup

up: build ## start a cluster on this machine
	$(SUDO) bin/hyperkube up
	@scripts/after-up

test: build ## format, vet, lint, unit tests, then e2e on this kernel
	@scripts/check-format
	go vet ./...
	CGO_ENABLED=1 go vet -tags seccomp ./components/runtime/...
	$(MAKE) --no-print-directory lint unit e2e

unit: ## unit tests, the concurrent packages under the race detector
	go test -timeout 30m $$(go list ./... | grep -v /components/runtime)
	CGO_ENABLED=1 go test -timeout 30m -race $(RACE)
	CGO_ENABLED=1 go test -timeout 30m -tags seccomp ./components/runtime/...

e2e: build ## tests of running clusters on this kernel; needs root
	$(SUDO) env "PATH=$$PATH" HYPERKUBE_E2E=$(CURDIR)/bin/hyperkube go test -count=1 -timeout 40m -v ./e2e/...

lint: ## golangci-lint, pinned
	@scripts/lint

generate: ## make generated files anew
	go generate ./...

bench: build ## measure what docs/performance.md records
	$(SUDO) env "PATH=$$PATH" scripts/bench

bench-scale: build ## measure how the API server grows with 10,000 to 100,000 pods; takes minutes
	$(SUDO) env "PATH=$$PATH" go run ./e2e/scale -up

install: build ## install to PREFIX (/usr/local)
	install -D -m 0755 bin/hyperkube $(DESTDIR)$(PREFIX)/bin/hyperkube
	@[ -e $(DESTDIR)$(PREFIX)/bin/kubectl ] || ln -s hyperkube $(DESTDIR)$(PREFIX)/bin/kubectl

clean: ## remove what was built
	rm -rf bin components/runtime/launch/program/runtime.zst
