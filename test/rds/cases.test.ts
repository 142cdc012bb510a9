/** The table of situations, cases.md, names tests that exist. */
import { itNamesTests } from '../support/cases-page.ts';

itNamesTests('test/rds/cases.md', 45);
