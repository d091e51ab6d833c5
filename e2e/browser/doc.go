// Package browser tests the dashboard in headless Chromium, against a cluster in separate namespaces:
//
//	make e2e-browser
package browser
