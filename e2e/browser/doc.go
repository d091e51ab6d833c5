// Package browser tests the dashboard in headless Chromium, against a cluster in namespaces of its own:
//
//	make e2e-browser
package browser
