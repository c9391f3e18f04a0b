"""Runs unittest modules and prints one line of TAP per test, without numbers."""
import sys
import unittest


class Result(unittest.TestResult):
    def _say(self, ok, test, rest=""):
        print("%s - %s%s" % ("ok" if ok else "not ok", test.id(), rest))
        sys.stdout.flush()

    def addSuccess(self, test):
        self._say(True, test)

    def addSkip(self, test, reason):
        self._say(True, test, " # SKIP %s (%s)" % (test.id(), reason))

    def _bad(self, test, error):
        self._say(False, test)
        for line in self._exc_info_to_string(error, test).splitlines():
            print("# " + line)

    def addError(self, test, error):
        self.errors.append((test, ""))
        self._bad(test, error)

    def addFailure(self, test, error):
        self.failures.append((test, ""))
        self._bad(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addFailure(subtest, error)


result = Result()
unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:]).run(result)
sys.exit(not result.wasSuccessful())
